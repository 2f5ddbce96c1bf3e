"""Everything that can go wrong, with the HTTP status and OpenAI error fields each carries.

SpillwayError
├── SettingError          the operator set something impossible: start is refused
├── NotManaged            a request that only its own backend understands: it is passed through
└── ClientError           the request can't be served as it is: told to the client
    ├── BadRequest        400, malformed
    ├── BodyTooLarge      413
    ├── Unauthorized      401
    ├── Forbidden         403, not from there, not under that name, or not without a key
    ├── ModelNotFound     404
    ├── NotFound          404, nothing of that name is kept
    ├── Conflict          409, not as things stand now
    ├── ContextOverflow   400 context_length_exceeded: nothing is left that could be shortened
    ├── HeadTooLarge      431
    ├── TooSlow           408
    ├── Overloaded        503, too many connections or viewers
    ├── ShuttingDown      503, the server is being stopped
    ├── StoreUnavailable  503, what is kept can't be looked up now
    ├── InternalError     500, a mistake of ours
    ├── NotImplementedHere  501, a part of HTTP that is not spoken here
    ├── WebSocketRefused  426, the same request is answered over HTTP
    └── UpstreamUnavailable  502/504, no backend answered, or not in a way that can be passed on
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override


class SpillwayError(Exception):
    """Base of all errors that Spillway raises on purpose."""


class NotManaged(SpillwayError):
    """A request that has no neutral form, and is passed to the backend as it came."""

    def __init__(self, fallback: Callable[[int], dict[str, Any]]) -> None:
        """`fallback` builds the answer for a backend without such requests, given the seconds since the epoch."""
        super().__init__()
        self.fallback = fallback


class SettingError(SpillwayError):
    """A setting is wrong; the text is one line that says which, its value and what is allowed."""


class ClientError(SpillwayError):
    """An error answered to the client, in OpenAI's shape."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    retry_after: int | None = None
    """Seconds after which the same request may succeed, if that is known."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "code": self.code, "param": self.param}}


class BadRequest(ClientError):
    """The request is malformed."""


class BodyTooLarge(ClientError):
    """The body is larger than `SPILLWAY_MAX_BODY`."""

    status = 413
    code = "request_too_large"


class Unauthorized(ClientError):
    """No key, or one that is not in `SPILLWAY_API_KEYS`."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ClientError):
    """The request is not allowed from this address, under this host name, or without a key; the text names the setting."""

    status = 403
    type = "permission_error"


class ModelNotFound(ClientError):
    """No backend lists the model that was asked for by its own id."""

    status = 404
    code = "model_not_found"


class NotFound(ClientError):
    """Nothing of that name is kept for this credential."""

    status = 404
    code = "not_found"


class Conflict(ClientError):
    """The request conflicts with the current state; the code says why."""

    status = 409


class ContextOverflow(ClientError):
    """The pinned part alone exceeds the window."""

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str | None = None, tokens: int, window: int) -> None:
        """`tokens` are those of the prompt, `window` those of the model's context window."""
        super().__init__(message, param=param)
        self.tokens = tokens
        self.window = window

    @override
    def body(self) -> dict[str, Any]:
        """With the figures by the names that llama-server (b11549) has for them."""
        error = super().body()["error"]
        return {"error": {**error, "n_prompt_tokens": self.tokens, "n_ctx": self.window}}


class HeadTooLarge(ClientError):
    """The request's target and headers are larger than 64 KiB."""

    status = 431
    code = "headers_too_large"


class TooSlow(ClientError):
    """The request stopped arriving for a minute."""

    status = 408
    code = "request_timeout"


class Overloaded(ClientError):
    """There are `SPILLWAY_MAX_CONNECTIONS` connections, or too many viewers."""

    status = 503
    type = "server_error"
    code = "overloaded"
    retry_after = 2


class ShuttingDown(ClientError):
    """The server is being stopped."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    retry_after = 5


class StoreUnavailable(ClientError):
    """The store does not answer, and the request can't be served without it."""

    status = 503
    type = "server_error"
    code = "store_unavailable"
    retry_after = 5


class WebSocketRefused(ClientError):
    """A client wants a WebSocket. With 426 Codex (0.169) goes on over HTTP at once, with anything else after six more tries."""

    status = 426
    code = "websocket_not_supported"


class NotImplementedHere(ClientError):
    """A part of HTTP that is not spoken here: tunnels, codings of a message."""

    status = 501
    code = "not_implemented"


FAILED = "Spillway failed on this request; its log says more."


class InternalError(ClientError):
    """A mistake in Spillway itself; the log has more."""

    status = 500
    type = "server_error"
    code = "internal_error"


class UpstreamUnavailable(ClientError):
    """The backend can't be reached, or fell silent."""

    status = 502
    type = "upstream_error"
    code = "upstream_unavailable"


class UpstreamTimeout(UpstreamUnavailable):
    """The backend said nothing for `SPILLWAY_READ_TIMEOUT`, or took nothing of the request for `SPILLWAY_SEND_TIMEOUT`."""

    status = 504
    code = "upstream_timeout"


class UpstreamRefused(UpstreamUnavailable):
    """The backend refuses to continue an answer, and would refuse the same request again."""

    code = "upstream_refused"


class UpstreamInvalid(UpstreamUnavailable):
    """The backend answered with something that is no response of HTTP."""

    code = "upstream_invalid"


class UpstreamTooLarge(UpstreamUnavailable):
    """The backend's answer is larger than `SPILLWAY_MAX_BODY`."""

    code = "upstream_too_large"


class BrokenOff(SpillwayError):
    """The backend broke off a response whose status has gone out already."""
