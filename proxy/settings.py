"""Settings: command line, then environment `SPILLWAY_*`, then a TOML file, then defaults.

The only module that reads the environment.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from proxy.environment import host_glob, is_injected, listed, misspelt, numbered, origin_glob, without_user
from proxy.errors import SettingError

BackendKind = Literal["auto", "lmstudio", "ollama", "openrouter", "llamacpp", "vllm", "generic"]
StatusForm = Literal["auto", "event", "reasoning", "content", "comment", "off"]
Policy = Literal["auto", "standard", "local"]
Recall = Literal["auto", "off"]
Key = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


Words = Annotated[tuple[Key, ...], NoDecode, BeforeValidator(listed)]
HostGlobs = Annotated[
    tuple[Annotated[Key, AfterValidator(host_glob)], ...], NoDecode, BeforeValidator(listed)
]
OriginGlobs = Annotated[
    tuple[Annotated[Key, AfterValidator(origin_glob)], ...], NoDecode, BeforeValidator(listed)
]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class BackendSetting(BaseModel):
    """One backend. `url` is its root, with or without `/v1`; `name` defaults to its host and port.

    What is not `managed` passes through untouched.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    name: str = ""
    kind: BackendKind = "auto"
    api_key: Key | None = Field(default=None, repr=False)
    managed: bool = True
    _basic: str | None = PrivateAttr(None)

    @field_validator("url")
    @classmethod
    def _root(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        parts = urlsplit(value)
        # A wrong port raises a ValueError of its own when it is asked for.
        if not parts.hostname or parts.port == 0 or re.search(r"[\s?#]", value):
            raise ValueError("must be a root such as http://127.0.0.1:1234, without query or spaces")
        return value.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.@ -]*", value, re.ASCII):
            raise ValueError("must be made of letters, digits, spaces and . _ - @")
        return value

    @model_validator(mode="after")
    def _user_and_name(self) -> BackendSetting:
        """Take user and password out of the URL, which is shown in many places, and give it a name."""
        parts = urlsplit(self.url)
        before, at, place = parts.netloc.rpartition("@")
        if at:
            if self.api_key is not None:
                raise ValueError("has both an api_key and a user in its url; only one of them can be sent")
            user, _, password = before.partition(":")
            told = f"{unquote(user)}:{unquote(password)}".encode()
            self._basic = f"Basic {b64encode(told).decode()}"
            object.__setattr__(self, "url", parts._replace(netloc=place).geturl())
        if not self.name:
            place = f"{parts.hostname}-{parts.port}" if parts.port else f"{parts.hostname}"
            object.__setattr__(self, "name", re.sub(r"[^\w.@-]", "-", place, flags=re.ASCII))
        return self

    @property
    def authorization(self) -> str | None:
        """What the backend is told in `Authorization`: its key, or user and password; None: what the client tells."""
        return self._basic if self.api_key is None else f"Bearer {self.api_key}"


class ModelSetting(BaseModel):
    """What the user says of the models whose id matches a glob; an absent field leaves the probed value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    managed: bool | None = None
    window: int | None = Field(default=None, ge=256)
    tools: bool | None = None
    vision: bool | None = None
    tokenizer: str | None = None
    continuation: Literal["continue_final_message", "trailing_assistant", "user_turn"] | None = None
    trigger: Fraction | None = None
    target: Fraction | None = None
    pause: Fraction | None = None
    policy: Policy | None = None
    summary_model: str | None = None
    recall: Recall | None = None
    recall_share: Fraction | None = None
    answer_cap: int | None = Field(default=None, ge=0)
    tools_allowed: tuple[str, ...] | None = None
    system_prompt_file: Path | None = None


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
    discover: Words = Field(
        ("127.0.0.1",), description="Hosts on which backends are looked for when none is configured."
    )
    api_keys: Words = Field(
        (), repr=False, description="Keys that clients must present; empty: open, on loopback only."
    )
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
    target: Fraction = Field(0.5, description="Fill to come down to when compacting.")
    pause: Fraction = Field(0.9, description="Fill at which a running answer is paused and compacted.")
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
    recall: Recall = Field("auto", description="Bring back what was covered where it is needed: auto, off.")
    recall_share: Fraction = Field(0.3, description="Fraction of the window that this may take.")
    status: StatusForm = Field(
        "auto", description="How users are told: auto, event, reasoning, content, comment, off."
    )
    policy: Policy = Field("auto", description="Limits for tool output: auto, standard, local.")
    answer_cap: int | None = Field(
        None,
        ge=0,
        description="Tokens of an answer whose client sets no bound; 0: no cap; default: 1,000 under local, else no cap.",
    )
    tools_allowed: Words = Field(
        (), description="Names of tools, or globs, that models are offered; empty: all."
    )
    system_prompt_file: Path | None = Field(
        None, description="File whose text stands for the client's system prompt under local."
    )
    emulate_tools: bool = Field(
        True, description="Give models without tools of their own the tools as text, and read their calls."
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
    graceful_timeout: float = Field(
        8.0, ge=0, description="Seconds that running answers get to end when the server is stopped."
    )
    connect_timeout: float = Field(10.0, gt=0, description="Seconds to wait for a connection to a backend.")
    read_timeout: float = Field(
        900.0, gt=0, description="Seconds of silence after which a backend is given up."
    )
    grace: float = Field(2.0, ge=0, description="Seconds before a waiting stream is opened with a heartbeat.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds between heartbeats on a silent stream.")
    demo: bool = Field(True, description="Serve the built-in demo model when no backend is found.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity logged."
    )

    @model_validator(mode="after")
    def _order(self) -> Settings:
        _in_order(self.target, self.trigger, self.pause, "")
        for glob, model in self.models.items():
            _in_order(
                model.target or self.target,
                model.trigger or self.trigger,
                model.pause or self.pause,
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


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings.

    Args:
        config: TOML file; default: `SPILLWAY_CONFIG`, else none.
        overrides: values from the command line; None means not given.

    Raises:
        SettingError: one line that names the setting, the value and what is allowed.
    """
    known = {name: _NESTED[name].model_fields if name in _NESTED else () for name in Settings.model_fields}
    wrong = misspelt(os.environ, {**known, "config": ()})  # noqa: TID251 - the one place
    if wrong is not None:
        raise SettingError(wrong)
    named = config or (Path(path) if (path := os.environ.get("SPILLWAY_CONFIG")) else None)  # noqa: TID251 - the one place
    if named is not None and not named.is_file():
        raise SettingError(f"config file {named} does not exist")

    class Sourced(Settings):
        model_config = SettingsConfigDict(toml_file=named)

    try:
        return Sourced(**{key: value for key, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise SettingError(_one_line(error)) from None
    except SettingsError as error:
        raise SettingError(_unparsed(error)) from None
    except (ValueError, OSError) as error:
        raise SettingError(f"config file {named} cannot be read: {error}".replace("\n", " ")) from None


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a backend (`HTTPS_PROXY` and its like), None if it is reached directly.

    What runs on this machine is, whatever the environment says.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if not proxy or _is_here(host) or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_here(host: str) -> bool:
    """Whether a host is this machine, or the one that a container runs on by Docker's name for it."""
    host = host.removesuffix(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host in {"localhost", "host.docker.internal"} or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or (mapped or address).is_unspecified


def _in_order(target: float, trigger: float, pause: float, where: str) -> None:
    if not target < trigger <= pause:
        order = f"target {target} must be below trigger {trigger}, and that at most pause {pause}"
        raise ValueError(f"{where}{order}")


def _unparsed(error: SettingsError) -> str:
    """A setting in the environment that has to be JSON and is not. It may hold keys, so it is not shown."""
    found = re.search(r'field "(\w+)"', str(error))
    name = f"SPILLWAY_{found.group(1).upper()}" if found is not None else "a setting"
    cause = str(error.__cause__ or error).replace("\n", " ")
    return f"{name} must be JSON, such as {_EXAMPLES.get(name, '[]')}, but is not: {cause}"


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    name = "SPILLWAY_" + "__".join(path).upper()
    if first["type"] == "extra_forbidden":
        fields = _NESTED.get(path[0], Settings).model_fields if len(path) > 1 else Settings.model_fields
        return f"{name}: no such setting; allowed are {', '.join(sorted(fields))}"
    value = repr(first.get("input"))
    if "KEY" in name or isinstance(first.get("input"), dict | list | tuple):
        value = "(hidden)"
    return f"{name}={without_user(value)}: {message[0].lower()}{message[1:]}"


_NESTED: dict[str, type[BaseModel]] = {"backends": BackendSetting, "models": ModelSetting}
_EXAMPLES = {
    "SPILLWAY_BACKENDS": '[{"url": "http://127.0.0.1:1234"}]',
    "SPILLWAY_API_KEYS": '["a-key"]',
    "SPILLWAY_ALLOWED_HOSTS": '["spillway"]',
    "SPILLWAY_CORS": '["https://chat.example.com"]',
    "SPILLWAY_TOOLS_ALLOWED": '["read_*"]',
    "SPILLWAY_MODELS": '{"qwen*": {"window": 8192}}',
}
STATUS_FORMS: tuple[str, ...] = get_args(StatusForm)
