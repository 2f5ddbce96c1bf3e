"""Types of settings, each parsed leniently from the forms that people type, and the settings of a backend."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

import pydantic

StatusForm = Literal["auto", "event", "reasoning", "content", "comment", "off"]
StatusDetail = Literal["minimal", "normal", "detailed"]
ToolMode = Literal["auto", "hybrid", "native", "emulated"]
Permission = Literal["open", "admin", "metrics", "content"]
Recall = Literal["auto", "tool", "off"]
AheadMode = Literal["auto", "on", "off"]
Policy = Literal["auto", "standard", "local"]
Limit = Literal[
    "protect_newest",
    "minimum_gain",
    "lines",
    "line_characters",
    "output_characters",
    "entries",
    "result_tokens",
    "guide",
    "tools",
    "answer_cap",
    "recall",
]
"""Limits of the policy that can be set individually."""

_BYTES = {f"{prefix}{unit}": 2 ** (10 * power) for power, prefix in enumerate("kmg", 1) for unit in ("b", "ib", "")}
_ENDPOINT = re.compile(
    r"(?:/+v1)*(?:/+(?:(?:chat/)?completions|responses|messages|embeddings|models)|/+api/(?:chat|generate|tags))?/*$"
)
"""End of a path that is not part of a server's root: the prefix of OpenAI's API, even twice, and an endpoint."""
LEAST_TOKENS = 256
"""Smallest usable window, in tokens."""


def urls(value: Any) -> Any:
    """Read backends from comma-separated URLs, or from numbered entries (`__0__`, `__1__`), the environment's form of a list."""
    if isinstance(value, dict) and value and all(str(key).isdecimal() for key in value):
        value = [value[key] for key in sorted(value, key=int)]
    rows = listed(f"[{value}]" if isinstance(value, str) and value.lstrip().startswith("{") else value)
    return [{"url": row} if isinstance(row, str) else row for row in rows] if isinstance(rows, list | tuple) else rows


def listed(value: Any) -> Any:
    """Read a list as people type it: JSON, or words with commas between them.

    Raises:
        ValueError: it is neither, or holds nothing but commas.
    """
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        if not (words := [word.strip() for word in value.split(",") if word.strip()]):
            raise ValueError("must not be an empty list; leave it out for none")
        return words
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be a list: JSON, such as ["a", "b"], or words with commas between them') from None


def table(value: Any) -> Any:
    """Read a table, which is JSON where there are no tables: in the environment and on the command line.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f'must be JSON, such as {{"NAME": …}}, but is not: {error}') from None


def _in_units(units: Mapping[str, float], unit: str) -> Callable[[Any], Any]:
    """Make a reader of numbers followed by one of these units; any other value is left to pydantic."""

    def read(value: Any) -> Any:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+|%)\s*", value.lower()) if isinstance(value, str) else None
        if found is None:
            return value
        if found[2] not in units:
            raise ValueError(f"must be {unit}, with {', '.join(units)} or nothing after the number")
        return round(float(found[1]) * units[found[2]], 9)  # 70 * 0.01 is 0.7000000000000001

    return read


_tokens = _in_units({"k": 1024, "%": 0.01}, "tokens or a share")
"""Reads `8k` as 8,192 tokens, since that is what everyone who types it means, and `80%` as 0.8."""


def lowered(value: Any) -> Any:
    """Convert a word to lower case, since some people write `INFO`."""
    return value.lower() if isinstance(value, str) else value


def share_or_tokens(value: float) -> float:
    """Check a share of the window, or tokens.

    Raises:
        ValueError: it is neither.
    """
    if not (0 < value <= 1 or value >= LEAST_TOKENS):
        raise ValueError(f"must be a share of the window, such as 0.8 or 80%, or tokens, at least {LEAST_TOKENS}")
    return value


def window_or_auto(value: Any) -> int | Literal["auto"]:
    """Read a window: tokens, or `auto`.

    Raises:
        ValueError: it is neither, or too small.
    """
    window = lowered(_tokens(value))
    window = int(window) if isinstance(window, float) or (isinstance(window, str) and window.isdecimal()) else window
    if window == "auto" or (isinstance(window, int) and not isinstance(window, bool) and window >= LEAST_TOKENS):
        return window
    raise ValueError(f"must be tokens, greater than or equal to {LEAST_TOKENS}, or auto")


def host_glob(value: str) -> str:
    """Normalise a host name that clients use, or a glob over such names, to lower case.

    Raises:
        ValueError: it is empty, or has a scheme, port or path.
    """
    if not re.fullmatch(r"[\w.*-]+", value, re.ASCII):
        raise ValueError("must be a name such as spillway or *.example.com, without scheme, port and path")
    return value.lower().removesuffix(".")


def origin_glob(value: str) -> str:
    """Normalise the origin of web pages, or a glob over origins, to lower case.

    Raises:
        ValueError: it is not an origin.
    """
    if not re.fullmatch(r"\*|null|[A-Za-z*][\w.+*-]*://[^\s/?#@]+/?", value, re.ASCII):
        raise ValueError("must be an origin such as https://chat.example.com, without path, or *")
    return value.lower().rstrip("/")


def host(value: str) -> str:
    """Check a host on which backends are looked for.

    Raises:
        ValueError: it is a URL, or has a port.
    """
    if not re.fullmatch(r"[\w.-]+|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\]?", value, re.ASCII):
        raise ValueError(
            "must be a host or an address, without scheme, port and path; a URL belongs in SPILLWAY_BACKENDS"
        )
    return value


StrategyName = Annotated[
    Literal["auto", "summarize", "truncate", "mask", "observe"],
    pydantic.BeforeValidator(lambda value: "auto" if lowered(value) == "hybrid" else value),
]
"""Strategy; `hybrid` is accepted because other tools call `auto` that."""
NonBlank = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)]
Fraction = Annotated[float, pydantic.BeforeValidator(_tokens), pydantic.Field(gt=0.0, le=1.0)]
Fill = Annotated[float, pydantic.BeforeValidator(_tokens), pydantic.AfterValidator(share_or_tokens)]
"""Share of the window up to 1, or tokens above."""
Window = Annotated[int | Literal["auto"], pydantic.PlainValidator(window_or_auto)]
Bytes = Annotated[int, pydantic.BeforeValidator(_in_units(_BYTES, "bytes"))]
"""Bytes, as in `64MB`, which is read as 64 MiB: nobody means the decimal unit here."""
Seconds = Annotated[float, pydantic.BeforeValidator(_in_units({"s": 1, "m": 60, "h": 3600, "d": 86400}, "seconds"))]
"""Seconds, as in `15m`."""
LogFormat = Annotated[Literal["text", "json"], pydantic.BeforeValidator(lowered)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], pydantic.BeforeValidator(lowered)]
WordList = Annotated[tuple[NonBlank, ...], pydantic.BeforeValidator(listed)]


def single_limits(value: Any, validate: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """Read single limits: `keep` is a list of words, all others are numbers."""
    words = value.get("keep") if isinstance(value, dict) else None
    if words is None:
        return validate(value)
    rest = validate({name: limit for name, limit in value.items() if name != "keep"})
    return {**rest, "keep": pydantic.TypeAdapter(WordList).validate_python(words)}


SingleLimits = Annotated[
    dict[Limit, Annotated[int, pydantic.Field(ge=0)]],
    pydantic.WrapValidator(single_limits),
    pydantic.BeforeValidator(table),
]
Permissions = Annotated[tuple[Permission, ...], pydantic.BeforeValidator(listed)]
StatusWords = Annotated[tuple[Literal[StatusForm, StatusDetail], ...], pydantic.BeforeValidator(listed)]
Hosts = Annotated[tuple[Annotated[NonBlank, pydantic.AfterValidator(host)], ...], pydantic.BeforeValidator(listed)]
HostGlobs = Annotated[
    tuple[Annotated[NonBlank, pydantic.AfterValidator(host_glob)], ...], pydantic.BeforeValidator(listed)
]
OriginGlobs = Annotated[
    tuple[Annotated[NonBlank, pydantic.AfterValidator(origin_glob)], ...], pydantic.BeforeValidator(listed)
]


class BackendSetting(pydantic.BaseModel):
    """One backend. `url` is its root, with or without `/v1`; `name` defaults to its host and port.

    Requests to a backend that is not `managed` pass through untouched. `kind` is checked by `proxy.config`, which knows all kinds.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    url: str
    name: str = ""
    kind: str = "auto"
    api_key: NonBlank | None = pydantic.Field(default=None, repr=False)
    managed: bool = True
    _basic: str | None = pydantic.PrivateAttr(None)

    @pydantic.field_validator("url")
    @classmethod
    def _root(cls, value: str) -> str:
        if re.match(r"[^/@]+:\d+(?:/|$)", value):  # a host and a port; without a port, more than the scheme is missing
            value = f"http://{value}"
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        parts = urlsplit(value)
        # `parts.port` itself raises a ValueError for a port that is not a number up to 65535.
        if not parts.hostname or parts.port == 0 or re.search(r"[\s?#]", value):
            raise ValueError("must be a root such as http://127.0.0.1:1234, without query or spaces")
        return parts._replace(path=_ENDPOINT.sub("", parts.path, count=1)).geturl()

    @pydantic.field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.@ -]*", value, re.ASCII):
            raise ValueError("must be made of letters, digits, spaces and . _ - @")
        return value

    @pydantic.model_validator(mode="after")
    def _user_and_name(self) -> Self:
        """Move user and password out of the URL, which is shown in many places, and derive a missing name from it."""
        parts = urlsplit(self.url)
        before, at, place = parts.netloc.rpartition("@")
        if at:
            if self.api_key is not None:
                raise ValueError("has both an api_key and a user in its url; only one of them can be sent")
            user, _, password = before.partition(":")
            credentials = f"{unquote(user)}:{unquote(password)}".encode()
            self._basic = f"Basic {b64encode(credentials).decode()}"
            object.__setattr__(self, "url", parts._replace(netloc=place).geturl())
        if not self.name:
            place = f"{parts.hostname}-{parts.port}" if parts.port else f"{parts.hostname}"
            object.__setattr__(self, "name", re.sub(r"[^\w.@-]", "-", place, flags=re.ASCII))
            self.model_fields_set.discard("name")
        return self

    @property
    def authorization(self) -> str | None:
        """Value of `Authorization` for the backend: its key, or user and password; None to pass the client's own."""
        return self._basic if self.api_key is None else f"Bearer {self.api_key}"
