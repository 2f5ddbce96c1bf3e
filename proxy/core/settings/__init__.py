"""Settings as one frozen value.

`Settings` holds everything that can be set, `ModelSettings` the part that may differ by model. `ModelOverrides` are the
values set for models whose id matches a glob; `Settings.for_model` applies them. An entry (`entries`) is the type of one
setting, which parses the forms that people type. `BackendSetting` describes one configured backend. `proxy.config` reads
all this from files and the environment.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import override

from proxy.core.settings import entries
from proxy.core.settings.entries import BackendSetting, Limit, Policy

__all__ = ["BackendSetting", "Limit", "Policy"]
"""Names that other modules import from here."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
AUTO = "auto"
OFF = "off"
"""Value that switches off a setting which otherwise holds a name or a text."""
DEFAULT_TRIGGER = 0.8
DEFAULT_TARGET = 0.5


class ModelSettings(BaseModel):
    """Settings that can differ from model to model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    trigger: entries.Fill = Field(
        default=DEFAULT_TRIGGER,
        description="A prompt that fills this much of the window is compacted before it is sent: a share, or tokens (24000), then at most 0.8 of it.",
    )
    target: entries.Fill = Field(
        default=DEFAULT_TARGET,
        description="How far a compaction shortens the prompt: a share of the window, or tokens, then at most 0.5 of the window.",
    )
    pause: entries.Fraction = Field(
        default=0.9,
        description="When prompt and answer fill this share of the window, the answer is paused, the history compacted, and the answer resumed.",
    )
    strategy: entries.StrategyName = Field(
        default="auto",
        description="How histories are shortened: `auto` or `hybrid` (asks a model only if needed), `summarize` (always asks a model), `truncate` (drops the oldest turns), `mask` (masks tool results, then makes an extract; asks no model), `observe` (changes nothing and records what would have been done).",
    )
    summary_model: entries.NonBlank | None = Field(
        examples=["qwen3-4b"],
        default=None,
        description="Model that writes the summaries. Default: the request's own model.",
    )
    summary_wait: Annotated[entries.Seconds, Field(ge=0)] | None = Field(
        examples=[5.0],
        default=None,
        description="Seconds a request waits for the model's summary before an extract is used. Default: 0 where summaries are written in the background, 5 elsewhere, unlimited with `SPILLWAY_AHEAD=off`.",
    )
    overflow: entries.NonBlank | None = Field(
        examples=["qwen3-8b-32k"],
        default=None,
        description="Model with a larger window, to which conversations move at the trigger instead of being compacted. Default: they are compacted.",
    )
    recall: entries.Recall = Field(
        default="auto",
        description="Whether passages that were taken out return when a turn needs them: `auto`, `tool` (the model can search them too), `off`.",
    )
    recall_model: entries.NonBlank | None = Field(
        examples=["nomic-embed-text"],
        default=None,
        description="Embedding model that finds passages which say the same in other words; `auto`: one that the answering backend has loaded. Default: only words are compared.",
    )
    archive: Literal["on", "off"] = Field(
        default="off",
        description="Whether the messages of conversations are stored, so that what a client no longer sends can be recalled: `on`, `off`.",
    )
    memory: Literal["off", "user", "key"] = Field(
        default="off",
        description="Whose statements about themselves are kept, and return in their other conversations: `off`, `user` (users whom a client with a key names in `X-OpenWebUI-User-Id`), `key` (also the holder of a key, where that is one person). Needs `SPILLWAY_API_KEYS`.",
    )
    ahead: entries.AheadMode = Field(
        default="auto",
        description="Whether conversations are compacted after an answer, while nobody waits: `auto` (with backends on this machine or in its network), `on`, `off`.",
    )
    documents: entries.AheadMode = Field(
        default="auto",
        description="Whether a message larger than the window is read in parts if the question is about all of it: `auto` (with backends on this machine or in its network), `on`, `off`.",
    )
    thinking_budget: Annotated[int, Field(ge=1)] | None = Field(
        examples=[2048],
        default=None,
        description="Tokens a model may think before it has to answer; a client's lower effort gets a part of them. Default: no bound.",
    )
    tool_mode: entries.ToolMode = Field(
        default="auto",
        description="How models get tools: `auto` or `hybrid` (natively if the model can; otherwise as text, and calls written as text are read), `native` (unchanged), `emulated` (as text).",
    )
    policy: Policy = Field(
        default="auto",
        description="How much is kept of tool output and of what agents send with every prompt: `auto`, `standard`, `local`.",
    )
    limits: entries.SingleLimits = Field(
        examples=[{"lines": 400}],
        default_factory=dict,
        description="Single limits of the policy, as in `SPILLWAY_LIMITS__LINES=400`.",
    )
    tools_allowed: entries.WordList = Field(
        examples=[["read_file", "search_*"]],
        default=(),
        description="Names of the tools that models are offered, or globs. Empty: all.",
    )
    system_prompt: entries.NonBlank | None = Field(
        examples=["You are a terse assistant."],
        default=None,
        description="Text that replaces the client's system prompt under the policy `local`; `off` keeps the client's. Default: a short prompt for coding agents.",
    )


class ModelOverrides(ModelSettings):
    """Settings of the models whose id matches a glob, and facts about them; only fields that were set count.

    For a fact that is None, the backend's report is used.
    """

    managed: bool | None = None
    window: entries.Window | None = None
    tools: bool | None = None
    vision: bool | None = None
    tokenizer: str | None = None
    pins: tuple[entries.NonBlank, ...] = ()
    """Texts at the end of every system prompt."""
    continuation: Literal["continue_final_message", "trailing_assistant", "user_turn"] | None = None


class Settings(ModelSettings):
    """Everything that can be set. Names in the environment: `SPILLWAY_` and the field in capitals."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8484, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    backends: Annotated[tuple[BackendSetting, ...], BeforeValidator(entries.urls)] = Field(
        examples=[[{"name": "ollama", "url": "http://127.0.0.1:11434"}]],
        default=(),
        description="List of `{name, kind, url, api_key, managed}`. Empty: Spillway looks on the usual ports.",
    )
    discover: entries.Hosts = Field(
        default=("127.0.0.1",), description="Hosts that are searched for backends if none is configured."
    )
    default_model: entries.NonBlank | None = Field(
        examples=["qwen3-8b"],
        default=None,
        description="Model for requests that name none; `off` refuses them. Default: the only model, or the only loaded one.",
    )
    api_keys: entries.WordList = Field(
        examples=[["sk-mine"]],
        default=(),
        repr=False,
        description="Keys, one of which every client must present. They are never sent to a backend. Empty: no key is needed, on loopback only.",
    )
    admin_keys: entries.WordList = Field(
        examples=[["sk-admin"]],
        default=(),
        repr=False,
        description="Keys that may look at all conversations but send no requests.",
    )
    allow: entries.Permissions = Field(
        default=(),
        examples=[["metrics"]],
        description="What is allowed beyond the safe default: `open` (anybody, on an address other than loopback), `admin` (loading, changing and deleting models of a backend without keys), `metrics` (`/metrics` without a key), `content` (holders of admin keys see the texts of conversations, not only figures).",
    )
    allowed_hosts: entries.HostGlobs = Field(
        examples=[["spillway", "*.example.com"]],
        default=(),
        description="Host names, or globs, by which clients without keys may address Spillway besides localhost and IP addresses.",
    )
    cors: entries.OriginGlobs = Field(
        examples=[["https://chat.example.com", "http://localhost:*"]],
        default=(),
        description="Origins of web pages that may use Spillway from a browser, or globs; `*` allows all.",
    )
    store: str = Field(
        default="sqlite",
        description="Where checkpoints are stored: `sqlite` (a file in your state folder), `sqlite:///PATH`, `memory://`, or `redis://HOST:PORT/DB` for several replicas.",
    )
    stabilise: bool = Field(
        default=True,
        description="Strip Claude Code's billing line and `cache_control` marks from prompts; set a mark where OpenRouter caches only then; have llama.cpp close gaps in its cache.",
    )
    restore: bool = Field(
        default=True,
        description="Put back what clients leave out of earlier answers: reasoning, and fields that a server wants returned.",
    )
    status: entries.StatusWords = Field(
        default=("auto",),
        examples=[["auto", "detailed"]],
        description="How users see that Spillway is at work: `auto`, `event`, `reasoning`, `content`, `comment`, `off`. A second word sets the length of the note after an answer cut short: `minimal`, `normal` (the default), `detailed`.",
    )
    models: Annotated[dict[str, ModelOverrides], BeforeValidator(entries.table)] = Field(
        examples=[{"qwen3*": {"window": 32768}}],
        default_factory=dict,
        description="Overrides by glob on the model id: managed, window, tools, tokenizer, trigger … (config/models.example.toml).",
    )
    store_ttl: entries.Seconds = Field(
        default=30 * 86400.0, gt=0, description="Seconds that a checkpoint is kept after its last use."
    )
    store_bytes: entries.Bytes = Field(
        default=256 * 2**20,
        gt=0,
        description="Bytes that the store may take. If it is full, the key with the most entries loses its oldest.",
    )
    cache_bytes: entries.Bytes = Field(
        default=64 * 2**20,
        ge=0,
        description="Bytes of memory for earlier requests, which later requests and the page read. With 0 the page shows no texts.",
    )
    max_body: entries.Bytes = Field(
        default=64 * 2**20,
        gt=0,
        description="Bytes of the largest request accepted, and of the largest unstreamed answer of a backend.",
    )
    max_connections: int = Field(default=1000, gt=0, description="Most connections of clients at a time.")
    graceful_timeout: entries.Seconds = Field(
        default=8.0,
        ge=0,
        description="Seconds that running answers have to end when the server stops. Docker kills after 10.",
    )
    read_timeout: entries.Seconds = Field(
        default=900.0,
        gt=0,
        description="Seconds without a byte after which a backend is given up, and the most that a summary may take.",
    )
    demo: bool = Field(default=True, description="Serve the built-in demo model until a backend is found.")
    log_level: entries.LogLevel = Field(default="info", description="Lowest severity that is logged.")
    log_format: entries.LogFormat = Field(
        default="text", description="Form of a log line: `text` (name=value) or `json`."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_order(dict(self), "")
        for glob, model in self.models.items():
            _check_order({**dict(self), **_set_fields(model)}, f"for models {glob}: ")
        for setting, name in self.helpers:
            if setting == "overflow":
                self.overflows(name)
        names = [backend.name for backend in self.backends]
        if len(set(names)) != len(names):
            msg = f"backends must have different names, not {names}"
            raise ValueError(msg)
        if self.host not in LOOPBACK and not self.api_keys and "open" not in self.allow:
            msg = (
                f"host {self.host} is not loopback and api_keys is empty; "
                "set SPILLWAY_API_KEYS, or SPILLWAY_ALLOW=open to let everybody in"
            )
            raise ValueError(msg)
        if self.remembers and not self.api_keys:
            raise ValueError("memory needs api_keys: without a key nobody vouches for who a user is")
        return self

    @override
    def __hash__(self) -> int:
        """Hash a few fields, since dictionaries cannot be hashed; enough for caches in which few settings are ever keys."""
        return hash((self.port, self.policy, self.trigger, self.target))

    def for_model(self, model: str) -> "Settings":
        """Return the settings in force for one model id; the same object where nothing differs."""
        return _for_model(self, model) if self.models else self

    def matching(self, model: str) -> list[ModelOverrides]:
        """List the overrides for a model id; later ones win."""
        return [each for glob, each in self.models.items() if fnmatchcase(model, glob)]

    def window_of(self, model: str) -> int | Literal["auto"] | None:
        """Return the window that is set for a model id: tokens, or `auto`."""
        return next((each.window for each in reversed(self.matching(model)) if each.window is not None), None)

    def overflows(self, model: str) -> list[str]:
        """List the models to which conversations of this one move, one after the other.

        Raises:
            ValueError: they move in a circle.
        """
        chain = [model]
        while (following := self.for_model(chain[-1]).overflow) not in (None, chain[-1]):
            if following in chain:
                raise ValueError(f"overflow leads in a circle: {' → '.join([*chain, following])}")
            chain.append(following)
        return chain[1:]

    @property
    def remembers(self) -> bool:
        """Return whether anything is remembered of users, with any model."""
        return any(each.memory != "off" for each in (self, *self.models.values()))

    @property
    def helpers(self) -> frozenset[tuple[str, str]]:
        """Models named by settings, each after the name of its setting."""
        named = [("default_model", self.default_model)] if self.default_model != OFF else []
        for each in (self, *self.models.values()):
            named += [(name, getattr(each, name)) for name in ("summary_model", "recall_model", "overflow")]
        return frozenset(
            (setting, model) for setting, model in named if model and (setting, model) != ("recall_model", AUTO)
        )


@lru_cache(maxsize=1024)
def _for_model(settings: Settings, model: str) -> Settings:
    chosen: dict[str, Any] = {}
    for each in settings.matching(model):
        set_here = {name: value for name, value in _set_fields(each).items() if name in Settings.model_fields}
        limits = {**chosen.get("limits", settings.limits), **set_here.get("limits", {})}
        chosen |= {**set_here, "limits": limits}
    if not chosen:
        return settings
    return settings.model_copy(update=chosen)


def _set_fields(model: ModelOverrides) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.model_fields_set}


def _check_order(values: Mapping[str, Any], where: str) -> None:
    target, trigger, pause = values["target"], values["trigger"], values["pause"]
    if target >= trigger and (target > 1) == (trigger > 1):
        raise ValueError(f"{where}target {target} must be below trigger {trigger}")
    if pause < trigger <= 1:
        raise ValueError(f"{where}trigger {trigger} must be at most pause {pause}")
