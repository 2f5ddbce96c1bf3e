"""The base of the writers of dialects that backends do not speak: nothing passes as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import Completion, Writer
from proxy.core.jsontext import dumps
from proxy.core.managing import Managed
from proxy.core.piece import NOBODY, CallPart, Identity, Piece


class Translator(Writer):
    """Writes one answer to its end, after which nothing comes; a dialect says how each thing is said.

    The reason for the end and the usage are kept until that: backends tell them apart from each other.
    """

    def __init__(self, managed: Managed) -> None:
        self._over = False
        self._finish: str | None = None
        self._stopped = ""
        self._usage: Mapping[str, Any] = {}
        self._managed = managed
        self._silent: str | None = None
        """The reason that is told for the end of an answer of which nothing else is: its prompt was only to be read."""

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        if piece.done:
            return self.end()
        if piece.error:
            return self.error({"error": piece.error})
        if piece.form is None:
            return self._aside(piece.frame)
        return self._says(piece, identity or piece.identity or NOBODY)

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        content = Piece(text=piece.text, thought=piece.thought, calls=piece.calls, choice=True)
        return self._says(content, identity)

    @override
    def insert(self, piece: Piece, identity: Identity) -> bytes:
        # Open WebUI's status event is left out: OpenAI's npm SDK (6.49, 7.57) throws at events it has no schema for.
        return self._comment(piece.comment) if piece.comment else self._says(piece, identity)

    @override
    def error(self, body: Mapping[str, Any]) -> bytes:
        if self._over:
            return b""
        self._over = True
        return self._failed(body.get("error"))

    @override
    def end(self) -> bytes:
        if self._over:
            return b""
        self._over = True
        return self._ended()

    @override
    def body(self, completion: Completion, choices: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        piece, usage = self._less([*choices, *completion.choices, Piece()][0], usage)
        identity = (completion.choices[0].identity if completion.choices else None) or NOBODY
        self._usage, self._finish, self._stopped = usage or piece.usage or {}, piece.finish, piece.stopped
        return dumps(self._body(piece, identity))

    def _says(self, piece: Piece, identity: Identity) -> bytes:
        """A piece of the first choice; of others, and after the end, nothing."""
        if piece.index or self._over:
            return b""
        piece, usage = self._less(piece, piece.usage)
        self._usage = usage or self._usage
        self._finish, self._stopped = piece.finish or self._finish, piece.stopped or self._stopped
        return self._events(piece, identity)

    def _less(self, piece: Piece, usage: Mapping[str, Any] | None) -> tuple[Piece, Mapping[str, Any] | None]:
        """A piece and the usage, less what is not told."""
        if self._silent is None:
            return piece, usage
        finish = piece.finish and self._silent
        silenced = replace(piece, text="", thought="", calls=(), finish=finish, stopped="")
        return silenced, usage and {**usage, "completion_tokens": 0}

    # -- as events of a stream; another kind of stream has neither comments nor these

    def _aside(self, frame: bytes) -> bytes:
        """A frame of the backend's that says nothing of the answer."""
        return frame if frame.startswith(b":") else b""

    def _comment(self, comment: str) -> bytes:
        """A comment that keeps the connection alive, or tells something besides the answer."""
        return sse.comment(comment)

    # -- what a dialect says

    def _events(self, piece: Piece, identity: Identity) -> bytes:
        raise NotImplementedError

    def _failed(self, error: Any) -> bytes:
        raise NotImplementedError

    def _ended(self) -> bytes:
        raise NotImplementedError

    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        raise NotImplementedError


def named_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An event that is named, and says its kind once more in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


class CallPieces:
    """Puts together the calls of an answer, numbered in the order in which they begin."""

    def __init__(self) -> None:
        self._first: list[CallPart] = []
        """The first piece of each call, with its id as soon as that is known."""
        self._arguments: list[list[str]] = []
        self._numbers: dict[int, int] = {}
        """By the backend's own index, the latest call that had it."""

    def take(self, part: CallPart) -> tuple[int, bool]:
        """The number of the call that a piece belongs to, and whether it begins that.

        A piece that is not numbered (Ollama, and calls that were read off text) begins one if it names a function. Where
        the index is always the same, a new id is a new call (older Ollama, Gemini).
        """
        if part.index is None:
            number = None if part.name or not self._first else len(self._first) - 1
        else:
            number = self._numbers.get(part.index)
        if number is not None and not (part.id and self._first[number].id not in ("", part.id)):
            first = self._first[number]
            self._first[number] = replace(first, name=first.name or part.name, id=first.id or part.id)
            self._arguments[number].append(part.arguments)
            return number, False
        self._first.append(part)
        self._arguments.append([part.arguments])
        if part.index is not None:
            self._numbers[part.index] = len(self._first) - 1
        return len(self._first) - 1, True

    def __len__(self) -> int:
        return len(self._first)

    def call(self, number: int) -> CallPart:
        """A call as far as it has come."""
        return replace(self._first[number], arguments="".join(self._arguments[number]))
