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
    """An answer that came in one body."""

    body: bytes = b""
    """As it came, without content-encoding; empty: no backend was asked."""
    form: Any = None
    """The same, parsed."""
    choices: tuple[Piece, ...] = ()
    """Each with its finish reason and the identity."""
    usage: dict[str, Any] | None = None
    is_error: bool = False


class Writer(Protocol):
    """Writes one answer for one client, in the order in which it is sent."""

    media_type: str
    """Of a stream."""
    final: dict[str, Any] | None = None
    """The complete answer in the client's form, once it has ended; None in dialects whose answers are never stored."""
    native: bool = False
    """Whether the backend speaks the same dialect, so that a frame may pass as it came, unread."""

    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """Write a piece that was read: as it came, or under another identity. Of one that is `done`, the mark that ends."""

    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        """Write a piece of a later attempt as part of the answer: no finish reason, no usage. Maybe nothing."""

    def insert(self, piece: Piece, identity: Identity) -> bytes:
        """Write a piece that Spillway made."""

    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        """Write what keeps a silent stream alive: an event where clients of the dialect count nothing else.

        `identity` is the answer's, None while nothing of it was written; `fallback` is the one to begin it under.
        """
        return self.insert(Piece(comment="spillway"), identity or fallback)

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finish with what it lacks because usage was asked for."""
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        """Write an error (`{"error": {"message": …}}`), and the end of the stream."""

    def end(self) -> bytes:
        """Write the mark that ends the stream."""

    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        """Write a body like this one, in which the choices are these; the same bytes if nothing differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """A client API, as a row of what differs."""

    name: str
    path: str
    """Of the requests that are made in it: as in Starlette, `{model}` stands for a part that differs."""
    read: Callable[..., Request]
    """Reads a body without content-encoding, given as bytes, and the parts that its path names, given by name.

    Raises BadRequest if it is malformed, NotManaged if only a backend that speaks this dialect itself can answer it.
    """
    writer: Callable[[Request, str, Managed], Writer]
    """Builds the writer of one answer, which may make ids of the text: hexadecimal, and like no other's.

    It reports the results of the client's edits and compaction, which are filled in while the answer is made.
    """
    error: Callable[[Any], dict[str, Any]] | None = None
    """Builds the body of an error from OpenAI's error object, whose code may be an HTTP status; None: in OpenAI's form."""
    count_path: str = ""
    """Of requests for the number of tokens in a prompt; empty: there are none."""
    count_head: Mapping[str, Any] = field(default_factory=dict)
    """What their answers hold besides that."""
    described: tuple[str, str, str] = ("ChatRequest", "ChatAnswer", "messages")
    """Names in `proxy.api.schemas` of its body and its answer, and the field that a body must have."""
    native: bool = False
    """Whether backends speak it as well."""
    parses_calls: bool = False
    """Whether clients get the arguments of calls as objects, and send them back so."""

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """Build the body of the answer to a request that can't be served."""
        body = error.body()
        return body if self.error is None else self.error({**body["error"], "code": error.status})

    def refused(self, body: bytes) -> bytes:
        """Translate a backend's error from the dialect spoken upstream; anything else stays as it came."""
        if self.error is None:
            return body
        error = (loads_object(body) or {}).get("error")
        return body if error is None else dumps(self.error(error))
