"""Settings: command line, then environment `SPILLWAY_*`, then a TOML file, then defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from proxy.environment import is_injected, numbered
from proxy.options import TOOLS_FIRST
from proxy.settings.entries import (
    AheadMode,
    BackendSetting,
    Fraction,
    HostGlobs,
    ModelSetting,
    NonBlank,
    OriginGlobs,
    Recall,
    SingleLimits,
    StatusForm,
    StrategyName,
    Tokens,
    WordList,
)
from proxy.shortening.policy import Policy

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Settings(BaseSettings):
    """Everything that can be set. Names in the environment: `SPILLWAY_` and the field in capitals."""

    model_config = SettingsConfigDict(
        env_prefix="SPILLWAY_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8484, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    backends: Annotated[tuple[BackendSetting, ...], BeforeValidator(numbered)] = Field(
        (), description="JSON list of `{name, kind, url, api_key, managed}`; empty: look on the usual ports."
    )
    discover: WordList = Field(
        ("127.0.0.1",), description="Hosts on which backends are looked for when none is configured."
    )
    default_model: NonBlank | None = Field(
        None,
        description="Model that answers requests which name none, or `off`: refuse them; default: the only or the loaded one.",
    )
    api_keys: WordList = Field(
        (), repr=False, description="Keys that clients must present; empty: open, on loopback only."
    )
    admin_keys: WordList = Field(
        (), repr=False, description="Keys with which all conversations may be looked at, and no model asked."
    )
    show_content: bool = Field(False, description="Show their holders what was said too, not only figures.")
    allowed_hosts: HostGlobs = Field(
        (),
        description="Names under which clients may call without keys, or globs; own names and IP addresses always.",
    )
    cors: OriginGlobs = Field(
        (), description="Origins of web pages that may use Spillway from a browser, or globs; `*`: all."
    )
    allow_admin: bool = Field(
        False, description="Pass on, without keys, what loads, changes or deletes models of a backend."
    )
    metrics_open: bool = Field(False, description="Give `/metrics` without a key, where there are keys.")
    allow_open: bool = Field(False, description="Allow an address other than loopback without keys.")
    store: str = Field(
        "sqlite:///spillway.sqlite3", description="`sqlite:///PATH`, `memory://` or `redis://…`."
    )
    trigger: Fraction = Field(0.8, description="Fill at which a request is compacted before it is sent.")
    trigger_tokens: Tokens | None = Field(
        None, description="The same in tokens; the lower of the two counts."
    )
    target: Fraction = Field(0.5, description="Fill to come down to when compacting.")
    target_tokens: Tokens | None = Field(None, description="The same in tokens; the lower of the two counts.")
    pause: Fraction = Field(0.9, description="Fill at which a running answer is paused and compacted.")
    strategy: StrategyName = Field(
        "auto",
        description="How histories are shortened: auto, summarize (always), or without a model: truncate, mask.",
    )
    vain_resumes: int = Field(
        3, ge=0, description="Resumes in a row that may gain nothing before an answer ends; 0: no resumes."
    )
    answer_windows: float = Field(
        16.0, gt=0, description="Windows that an answer without a `max_tokens` of its client may fill."
    )
    summary_model: str | None = Field(None, description="Model that summarises; default: the request's own.")
    summary_timeout: float = Field(
        300.0, gt=0, description="Seconds a summary may take; then the history is shortened without one."
    )
    stabilise: bool = Field(
        True, description="Strip Claude Code's billing line and `cache_control` marks from prompts."
    )
    virtual_window: int = Field(
        200_000,
        ge=0,
        description="Tokens of the window that Codex and Claude Code get where the true one is smaller; 0: the true one.",
    )
    recall: Recall = Field(
        "auto",
        description="Bring back what was covered where it is needed: auto, tool (a search for the model too), off.",
    )
    recall_share: Fraction = Field(0.3, description="Fraction of the window that this may take.")
    recall_model: str | None = Field(
        None, description="Embedding model that finds what was said in other words; default: words alone."
    )
    ahead: AheadMode = Field(
        "auto", description="Compact after an answer what the next turn would wait for: auto, on, off."
    )
    status: StatusForm = Field(
        "auto", description="How users are told: auto, event, reasoning, content, comment, off."
    )
    policy: Policy = Field(
        "auto",
        description="How much is kept of tool output, and of what agents send with every prompt: auto, standard, local.",
    )
    limits: SingleLimits = Field(
        default_factory=dict,
        description="Single limits of the policy, as `SPILLWAY_LIMITS__LINES=400`; see below.",
    )
    answer_cap: int | None = Field(
        None,
        ge=0,
        description="Tokens of an answer whose client sets no bound; 0: no cap; default: 1,000 under local, else no cap.",
    )
    tools_allowed: WordList = Field(
        (), description="Names of tools, or globs, that models are offered; empty: all."
    )
    system_prompt_file: Path | None = Field(
        None, description="File whose text stands for the client's system prompt under local."
    )
    tools_first: WordList = Field(
        TOOLS_FIRST,
        description="Globs on names of tools, in small letters: which say what they do where not all have room, under local.",
    )
    agent_prompt: bool = Field(
        True, description="Put a short system prompt in place of a coding agent's long one, under local."
    )
    guide_file: Path | None = Field(
        None,
        description="File whose text stands for the guide files (`AGENTS.md`) that clients paste into prompts, under local.",
    )
    emulate_tools: bool = Field(
        True, description="Give models without tools of their own the tools as text, and read their calls."
    )
    read_leaked_calls: bool = Field(
        True,
        description="Read back tool calls that models with tools of their own write as text at the end of an answer.",
    )
    ask_usage: bool = Field(True, description="Ask for usage on streams whose client said nothing about it.")
    models: dict[str, ModelSetting] = Field(
        default_factory=dict,
        description="Overrides by glob on the model id: managed, window, tools, tokenizer, trigger …",
    )
    profile_ttl: float = Field(30.0, gt=0, description="Seconds a probed profile is believed.")
    store_ttl: float = Field(
        30 * 86400.0, gt=0, description="Seconds a checkpoint is kept after its last use."
    )
    store_bytes: int = Field(256 * 2**20, gt=0, description="Bytes of checkpoints kept; the oldest go first.")
    store_timeout: float = Field(
        0.25,
        gt=0,
        description="Seconds an operation of the store may cost a request; more for a Redis far away.",
    )
    live_bytes: int = Field(
        64 * 2**20, ge=0, description="Bytes of recent requests kept in memory to be looked at; 0: none."
    )
    max_body: int = Field(64 * 2**20, gt=0, description="Bytes of the largest request body accepted.")
    max_messages: int = Field(10_000, gt=0, description="Messages of the longest managed request accepted.")
    max_parts: int = Field(20_000, gt=0, description="Parts, tool calls and tools of a managed request.")
    max_answer: int = Field(
        64 * 2**20,
        gt=0,
        description="Bytes of the largest answer taken from a backend that does not stream it.",
    )
    max_bodies: int = Field(
        256 * 2**20, gt=0, description="Bytes of request bodies held at a time, of all clients together."
    )
    max_header: int = Field(64 * 1024, ge=1024, description="Bytes of a request's line and headers.")
    max_connections: int = Field(1000, gt=0, description="Connections of clients at a time.")
    max_connections_per_address: int = Field(
        500, ge=0, description="Of them from one address, loopback excepted; 0: no bound of its own."
    )
    client_timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds a client may take for its headers, be silent in its body, or not read its answer.",
    )
    keep_alive: float = Field(
        5.0, gt=0, description="Seconds that a client's connection is kept open between two requests."
    )
    graceful_timeout: float = Field(
        8.0, ge=0, description="Seconds that running answers get to end when the server is stopped."
    )
    connect_timeout: float = Field(10.0, gt=0, description="Seconds to wait for a connection to a backend.")
    read_timeout: float = Field(
        900.0, gt=0, description="Seconds of silence after which a backend is given up."
    )
    grace: float = Field(2.0, ge=0, description="Seconds before a waiting stream is opened with a heartbeat.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds between heartbeats on a silent stream.")
    demo: bool = Field(True, description="Serve the built-in demo model until a backend is found.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity logged."
    )

    @model_validator(mode="after")
    def _order(self) -> Settings:
        _in_order(self.target, self.trigger, self.pause, "")
        _tokens_in_order(self.target_tokens, self.trigger_tokens, "")
        for glob, model in self.models.items():
            _in_order(
                model.target or self.target,
                model.trigger or self.trigger,
                model.pause or self.pause,
                f"for models {glob}: ",
            )
            _tokens_in_order(
                model.target_tokens or self.target_tokens,
                model.trigger_tokens or self.trigger_tokens,
                f"for models {glob}: ",
            )
        names = [backend.name for backend in self.backends]
        if len(set(names)) != len(names):
            msg = f"backends must have different names, not {names}"
            raise ValueError(msg)
        if self.max_bodies < self.max_body:
            bounds = f"max_bodies {self.max_bodies} must be at least max_body {self.max_body}"
            raise ValueError(f"{bounds}, or the largest never gets in")
        if self.host not in LOOPBACK and not self.api_keys and not self.allow_open:
            msg = (
                f"host {self.host} is not loopback and api_keys is empty; "
                "set SPILLWAY_API_KEYS, or SPILLWAY_ALLOW_OPEN=1 to let everybody in"
            )
            raise ValueError(msg)
        return self

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line (init) over environment over TOML file."""
        del dotenv_settings, file_secret_settings
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = {
                name: value
                for name, value in env_settings.env_vars.items()
                if not is_injected(name.upper(), value or "")
            }
        path = settings_cls.model_config.get("toml_file")
        file = (TomlConfigSettingsSource(settings_cls),) if path else ()
        return (init_settings, env_settings, *file)


def _in_order(target: float, trigger: float, pause: float, where: str) -> None:
    if not target < trigger <= pause:
        order = f"target {target} must be below trigger {trigger}, and that at most pause {pause}"
        raise ValueError(f"{where}{order}")


def _tokens_in_order(target: int | None, trigger: int | None, where: str) -> None:
    if target is not None and trigger is not None and target >= trigger:
        raise ValueError(f"{where}target_tokens {target} must be below trigger_tokens {trigger}")
