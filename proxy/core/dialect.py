"""Protocols of dialects: read a backend's answer into pieces, write pieces as a client's answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from proxy.core.errors import ClientError
from proxy.core.managing import Managed
from proxy.core.piece import Identity, Piece
from proxy.core.request import Request


@dataclass(frozen=True, kw_only=True)
class WholeAnswer:
    """An answer that was not streamed."""

    form: Any
    """The body as its dialect parsed it."""
    body: bytes = b""
    """The same as it came, without content-encoding."""
    read: Callable[[], tuple[Piece, ...]]
    """Reads `pieces`; most answers pass without."""
    finish: str | None
    """Of the first choice."""
    usage: dict[str, Any] | None
    model: str
    """As the backend calls it; empty: it does not say."""
    refused: bool
    """Whether it is an error instead of an answer."""

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Each choice in one piece, with its finish reason and the identity."""
        return self.read()


NO_ANSWER = WholeAnswer(form=None, read=tuple, finish=None, usage=None, model="", refused=False)
"""Stands for the answer of a model that was not asked for one."""


class Reader(Protocol):
    """Reads what a backend sends. Holds nothing of any one answer."""

    def read(self, frame: bytes) -> Piece:
        """Read a complete frame of a stream."""
        ...

    def torn(self, frame: bytes) -> bool:
        """Return whether the last frame of a stream was cut off in the middle."""
        ...

    def read_body(self, body: bytes) -> WholeAnswer | None:
        """Read a body that is no stream; None for what is no answer in this dialect."""
        ...

    def chunks(self, answer: WholeAnswer, choices: Sequence[Piece]) -> list[Piece]:
        """The pieces in which a stream would say these choices of a body, with its usage and the end mark."""
        ...


class Writer(Protocol):
    """Writes one answer for one client, in the order in which it is sent; it may count what it wrote."""

    media_type: str
    """Of a stream."""
    final: dict[str, Any] | None = None
    """The complete answer in the client's form, once it has ended; None in dialects whose answers are never stored."""
    native: bool = False
    """Whether the backend speaks the same dialect, so that a frame may pass as it came, unread."""

    def manage(self, managed: Managed) -> None:
        """Report the results of the client's edits and compaction with the answer; they are still being filled in."""
        del managed

    def more(self, name: str) -> Callable[[str], bytes] | None:
        """Return what writes a word more of the newest text, without a quote or an escape; None: only the backend's frame can.

        `name` is the field of the backend's frames in which it comes. Good until anything else is written.
        """
        del name
        return None

    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """Write a piece that was read: as it came, or under another identity. Of one that is `done`, the mark that ends."""
        ...

    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        """Write a piece of a later attempt as part of the answer: no finish reason, no usage. Maybe nothing."""
        ...

    def insert(self, piece: Piece, identity: Identity) -> bytes:
        """Write a piece that Spillway made."""
        ...

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finish with what it lacks because usage was asked for."""
        del usage
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        """Write an error (`{"error": {"message": …}}`), and the end of the stream."""
        ...

    def end(self) -> bytes:
        """Write the mark that ends the stream."""
        ...

    def filled(self, answer: WholeAnswer) -> bytes:
        """Return the body with the fields that the dialect demands where the backend left them out; only of a `native` one."""
        return answer.body

    def body(self, answer: WholeAnswer, pieces: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        """Write a body like this one, in which the choices say this."""
        ...


class Dialect(Protocol):
    """A client API; by default its errors and counts have OpenAI's form."""

    name: str
    paths: tuple[str, ...]
    """Of the requests that are made in it."""
    parses_calls: bool = False
    """Whether clients get the arguments of calls as objects, and send them back so."""
    counts: tuple[str, ...] = ()
    """Paths of requests that ask how many tokens a prompt has; none in most dialects."""

    def read(self, body: bytes, wire: bytes) -> Request:
        """Read a client's request; `wire` is its body as it came, `body` the same without content-encoding.

        Raises:
            BadRequest: it is malformed.
            NotManaged: only a backend that speaks this dialect itself can answer it.
        """
        ...

    def read_to_count(self, body: bytes) -> Request:
        """Read the prompt of a request that asks for its count.

        Raises:
            BadRequest: it is malformed.
        """
        return self.read(body, body)

    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        """Answer such a request. `before` are its tokens before anything was left out; None: nothing was to be."""
        del before
        return {"input_tokens": tokens}

    def answer_id(self, unique: str) -> str:
        """Return the id of an answer that no backend has given one yet."""
        return unique

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """Return the body of the answer to a request that can't be served."""
        return error.body()

    def refused(self, body: bytes) -> bytes:
        """Translate a backend's error from the dialect spoken upstream; anything else stays as it came."""
        return body

    def writer(self, request: Request, unique: str) -> Writer:
        """Return the writer of one answer, which may make its ids of `unique`: hexadecimal, and like no other's."""
        ...
