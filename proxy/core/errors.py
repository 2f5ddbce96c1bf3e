"""Everything that can go wrong, with the HTTP status and OpenAI error fields of each."""

import re
from typing import Any

from typing_extensions import override

from proxy.core.jsontext import dumps

STREAM_FAILED = "upstream_failed"
"""Code of an error inside a stream: the backend broke off, or sent something unreadable."""
_LONGEST = 4000
"""Characters after which an error's text is cut: it may quote clients and backends."""
FAILED = "Spillway failed on this request; its log says more."


def printable(text: str) -> str:
    """Return a text on one line and without control characters, since clients and backends choose the names in it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def plural(number: int, noun: str, rest: str = "", *, form: str = "") -> str:
    """Return a count and its noun in singular or plural, followed by `rest`; `form` is the number's format."""
    many = (
        noun
        if number == 1
        else f"{noun[:-1]}ies"
        if noun.endswith("y")
        else f"{noun}{'es' * noun.endswith('h') or 's'}"
    )
    return f"{number:{form}} {many}{rest}"


class SpillwayError(Exception):
    """Base of all errors that Spillway raises on purpose."""


class SettingError(SpillwayError):
    """A setting is wrong; the text is one line that says which, its value and what is allowed."""


class BrokenOff(SpillwayError):
    """The backend broke off a response whose status was already sent to the client."""


class ClientError(SpillwayError):
    """An error answered to the client, in OpenAI's shape."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    retry_after: int | None = None
    """Seconds after which the same request may succeed; None if unknown."""

    @override
    def __init_subclass__(cls, status: int = 0, type: str = "", code: str = "", retry_after: int = 0) -> None:
        """Set the fields of a subclass; those that are not given are inherited."""
        cls.status = status or cls.status
        cls.type = type or cls.type
        cls.code = code or cls.code
        cls.retry_after = retry_after or cls.retry_after

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        self.param = param
        self.code = code or type(self).code

    @property
    def label(self) -> str:
        """Name of the error in records: its code, or else its type."""
        return self.code or self.type

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "code": self.code, "param": self.param}}


class BadRequest(ClientError):
    """The request is malformed."""


class NotManaged(BadRequest):
    """The request has no neutral form, so it is passed to the backend unchanged."""


class BodyTooLarge(ClientError, status=413, code="request_too_large"):
    """The body is larger than `SPILLWAY_MAX_BODY`."""


class Unauthorized(ClientError, status=401, type="authentication_error", code="invalid_api_key"):
    """The key is missing, or is not in `SPILLWAY_API_KEYS`."""


class Forbidden(ClientError, status=403, type="permission_error"):
    """The request is not allowed from this address, with this host name, or without a key; the text names the setting."""


class ModelNotFound(ClientError, status=404, code="model_not_found"):
    """No backend lists a model of the requested id."""


class NotFound(ClientError, status=404, code="not_found"):
    """Nothing of that name is stored for this credential."""


class Conflict(ClientError, status=409):
    """The request conflicts with the current state; the code says why."""


class ContextOverflow(ClientError, code="context_length_exceeded"):
    """The pinned part of the prompt, which may not be shortened, alone exceeds the window."""

    def __init__(self, message: str, **figures: Any) -> None:
        """`figures` are token counts, added to the error under llama-server's names for them (b11549)."""
        super().__init__(message, param="messages")
        self.figures = figures

    @override
    def body(self) -> dict[str, Any]:
        return {"error": {**super().body()["error"], **self.figures}}


class TooMuchWork(ClientError, status=413, code="too_much_work"):
    """Reading and shortening the request takes longer than a single request may."""


class HeadTooLarge(ClientError, status=431, code="headers_too_large"):
    """The request's target and headers are larger than 64 KiB."""


class TooSlow(ClientError, status=408, code="request_timeout"):
    """The request stopped arriving for a minute."""


class WebSocketRefused(ClientError, status=426, code="websocket_not_supported"):
    """A client wants a WebSocket. On 426, Codex (0.169) falls back to HTTP at once; on anything else, after six more tries."""


class MethodRefused(ClientError, status=501, code="method_not_supported"):
    """No path supports the method."""


class LoopDetected(ClientError, status=508, type="server_error", code="loop_detected"):
    """The request came back from one of Spillway's own backends."""


class InternalError(ClientError, status=500, type="server_error", code="internal_error"):
    """A bug in Spillway itself; the log has more."""


class Overloaded(ClientError, status=503, type="server_error", code="overloaded", retry_after=2):
    """`SPILLWAY_MAX_CONNECTIONS` is reached, or too many viewers are connected."""


class ShuttingDown(ClientError, status=503, type="server_error", code="shutting_down", retry_after=5):
    """The server is being stopped."""


class StoreUnavailable(ClientError, status=503, type="server_error", code="store_unavailable", retry_after=5):
    """The store does not answer, and the request can't be served without it."""


class UpstreamUnavailable(ClientError, status=502, type="upstream_error", code="upstream_unavailable"):
    """The backend can't be reached, or fell silent."""


class UpstreamTimeout(UpstreamUnavailable, status=504, code="upstream_timeout"):
    """The backend sent nothing, or read nothing of the request, for `SPILLWAY_READ_TIMEOUT`."""


class UpstreamRefused(UpstreamUnavailable, code="upstream_refused"):
    """The backend refuses to continue an answer; trying the same request again would not help."""


class UpstreamInvalid(UpstreamUnavailable, code="upstream_invalid"):
    """The backend's response is not valid HTTP."""


class UpstreamTooLarge(UpstreamUnavailable, code="upstream_too_large"):
    """The backend's answer is larger than `SPILLWAY_MAX_BODY`."""


# -- what backends report

_WORDS = ("message", "msg", "error_message", "error_msg", "detail", "details", "error", "errors", "reason", "title")
"""Fields in which servers describe an error (FastAPI, TGI, LM Studio, Venice, RFC 9457), the plainest first."""
_NAMES_ERROR = re.compile(r"error|exception|^details?$", re.IGNORECASE)
_TYPES = {400: "invalid_request_error", 404: "not_found_error"}


def error_in(value: Any, status: int = 200, *, answers: bool = False) -> dict[str, Any] | None:
    """Find the error that JSON from a backend reports, in OpenAI's form (then the same object), or None if it reports none.

    Servers put errors at the top level, in a list, under `detail` or `error_type`, or under a key that is a sentence
    (Ollama). So an object reports an error if the HTTP status, a field's name or a code says so. Where it `answers`, that
    is, holds part of an answer, only its `error` field counts.
    """
    if isinstance(value, list):
        found = [error for each in value[:1] if (error := error_in(each, status)) is not None]
        return found[0] if found else None
    if isinstance(value, str) and status >= 400:
        value = {"error": value}
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict) and error and isinstance(error.get("message"), str):
        return error
    named = [key for key in value if value[key] and _NAMES_ERROR.search(key)]
    says = status >= 400 or "error" in (value.get("object"), value.get("type"), value.get("event"), value.get("status"))
    failed = "code" in value and bool(_said(value)) and value["code"] not in (0, 200, "0", "200")
    if not error and (answers or not (named or says or failed)):
        return None
    inner = error if isinstance(error, dict) else {}
    words = _said(inner) or _said(value) or "; ".join(f"{key}: {text}" for key in named if (text := _said(value[key])))
    kind = inner.get("type") or value.get("error_type") or _TYPES.get(status, "api_error")
    code = inner.get("code", value.get("code", value.get("error_code")))
    return {**inner, "message": words or dumps(value).decode(), "type": kind, "param": None, "code": code}


def _said(value: Any) -> str:
    """Return the description in part of an error; empty if there is none."""
    if isinstance(value, list):
        return "; ".join(filter(None, map(_said, value)))
    if isinstance(value, dict):
        return next((words for name in _WORDS if (words := _said(value.get(name)))), "")
    return value if isinstance(value, str) else ""
