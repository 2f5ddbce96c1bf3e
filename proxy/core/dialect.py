"""A dialect: how a client's requests are read, and how answers are written for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.core.errors import ClientError
from proxy.core.jsontext import dumps, loads_object
from proxy.core.piece import Identity, Piece
from proxy.core.request import Managed, Request


@dataclass(frozen=True, kw_only=True)
class Completion:
    """An answer that arrived in one body, without streaming."""

    body: bytes = b""
    """The body as received, its content-encoding removed; empty if no backend was asked."""
    form: Any = None
    """The parsed body."""
    choices: tuple[Piece, ...] = ()
    """One piece per choice, each with its finish reason and the answer's identity."""
    usage: dict[str, Any] | None = None
    is_error: bool = False


class Writer(Protocol):
    """Writes one answer for one client. Methods are called in the order in which their bytes are sent."""

    media_type: str
    """Media type of a streamed answer."""
    final: dict[str, Any] | None = None
    """The complete answer in the client's form, once it has ended; None in dialects whose answers are never stored."""
    native: bool = False
    """Whether the backend speaks the same dialect, so that a frame may be passed on unread."""

    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """Write a piece as the backend sent it, or under another identity; for a `done` piece, write the end mark."""

    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        """Write a piece of a later attempt as part of the same answer, without finish reason and usage; may be empty."""

    def insert(self, piece: Piece, identity: Identity) -> bytes:
        """Write a piece that Spillway made."""

    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        """Write a heartbeat for a silent stream: a real event where the dialect's clients ignore comments.

        `identity` is the answer's, or None before its first byte; the answer is then begun under `fallback`.
        """
        return self.insert(Piece(comment="spillway"), identity or fallback)

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finishing piece with the fields that its backend moved to the usage frame because usage was requested."""
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        """Write an error (`{"error": {"message": …}}`) and end the stream."""

    def end(self) -> bytes:
        """Write the mark that ends the stream."""

    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        """Write the body with these choices in place of its own; return the same bytes if nothing differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """A client API: one row with everything in which it differs from the others."""

    name: str
    path: str
    """Path of its requests, in Starlette's syntax: `{model}` is a path parameter."""
    model: str = ""
    """Model in the path of one request; empty if the body names it."""
    read: Callable[..., Request]
    """Reads a body, given as bytes without content-encoding; path parameters are keyword arguments.

    Raises BadRequest if it is malformed, or NotManaged if only a backend that speaks this dialect itself can answer it.
    """
    writer: Callable[[Request, str, Managed], Writer]
    """Builds the writer of one answer from the request, a unique hexadecimal text for ids, and the results to report.

    The results are those of the client's edits and compaction. They are filled in while the answer is made.
    """
    error: Callable[[Any], dict[str, Any]] | None = None
    """Builds an error's body from OpenAI's error object, whose code may be an HTTP status; None for OpenAI's own form."""
    count_path: str = ""
    """Path of requests that count a prompt's tokens; empty if the dialect has none."""
    count_head: Mapping[str, Any] = field(default_factory=dict)
    """Constant fields of a token count's answer."""
    described: tuple[str, str, str] = ("ChatRequest", "ChatAnswer", "messages")
    """Names in `proxy.api.schemas` of its request and its answer, and the field that every request must have."""
    native: bool = False
    """Whether backends speak it too."""
    parses_calls: bool = False
    """Whether a call's arguments are an object, not JSON text, in what clients get and send."""

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """Build the body of the answer to a request that can't be served."""
        body = error.body()
        return body if self.error is None else self.error({**body["error"], "code": error.status})

    def refused(self, body: bytes) -> bytes:
        """Translate a backend's error from the dialect spoken upstream; anything else is returned unchanged."""
        if self.error is None:
            return body
        error = (loads_object(body) or {}).get("error")
        return body if error is None else dumps(self.error(error))
