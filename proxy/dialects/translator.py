"""The base of the writers of dialects that backends do not speak: nothing passes as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import Completion, Writer
from proxy.core.jsontext import dumps
from proxy.core.managing import Managed, SealedCompaction
from proxy.core.piece import NOBODY, CallPart, Identity, Piece


class Translator(Writer):
    """Writes one answer as a beginning, blocks of text or reasoning that are opened, grow and are closed, calls, and an end.

    Nothing comes after the end. The finish reason and the usage are kept until then: backends report them apart.
    """

    def __init__(self, managed: Managed, silent: str | None = None) -> None:
        """`silent` is the finish reason of an answer of which nothing else is sent: its prompt was only to be read."""
        self._managed = managed
        self._silent = silent
        self._begun = self._compacted = self._over = False
        self._block = ""
        """The kind of the open block, `text` or `thinking` or a dialect's own; empty: none is open."""
        self._calls = Calls()
        self._finish: str | None = None
        self._stopped = ""
        self._usage: Mapping[str, Any] = {}

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        if piece.done:
            return self.end()
        if piece.error:
            return self.error({"error": piece.error})
        if piece.form is None:
            return self._aside(piece.frame)
        return self._written(piece, identity or piece.identity or NOBODY)

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        content = Piece(text=piece.text, thought=piece.thought, calls=piece.calls, choice=True)
        return self._written(content, identity)

    @override
    def insert(self, piece: Piece, identity: Identity) -> bytes:
        # Open WebUI's status event is left out: OpenAI's npm SDK (6.49, 7.57) throws at events it has no schema for.
        return self._comment(piece.comment) if piece.comment else self._written(piece, identity)

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
        return b"".join((*self._beginning(NOBODY), *self._close(), *self._ended()))

    @override
    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        first = [*choices, *completion.choices, Piece()][0]
        piece = self._noted(replace(first, index=0, usage=usage or first.usage))
        return dumps(self._body(piece, (completion.choices[0].identity if completion.choices else None) or NOBODY))

    def _written(self, piece: Piece, identity: Identity) -> bytes:
        """A piece of the first choice; of others, and after the end, nothing."""
        if piece.index or self._over:
            return b""
        piece, out = self._noted(piece), list[bytes]()
        if piece.choice or piece.role or piece.text or piece.thought or piece.calls:
            out += self._beginning(identity, piece.prompt_tokens)
        for kind, text in (("thinking", piece.thought), ("text", piece.text)):
            if text:
                out += self._text(kind, text)
        for part in piece.calls:
            out += self._call(part, *self._calls.take(part))
        return b"".join(out)

    def _noted(self, piece: Piece) -> Piece:
        """Keep the finish reason and the usage of a piece, and return it less what is not sent."""
        usage = piece.usage
        if self._silent is not None:
            piece = replace(
                piece, text="", thought="", calls=(), finish=piece.finish and self._silent, stopped="", usage=None
            )
            usage = usage and {**usage, "completion_tokens": 0}
        self._usage = usage or self._usage
        self._finish, self._stopped = piece.finish or self._finish, piece.stopped or self._stopped
        return piece

    def _beginning(self, identity: Identity, prompt_tokens: int = 0) -> list[bytes]:
        """What comes before all else, once: the head of the answer, and the compaction that it begins with."""
        out = list[bytes]()
        if not self._begun:
            self._begun = True
            out += self._begin(identity, prompt_tokens)
        compaction = self._managed.sealed_compaction
        if compaction is not None and not self._compacted:
            self._compacted = True
            out += (*self._close(), *self._compaction(compaction))
        return out

    def _text(self, kind: str, text: str) -> list[bytes]:
        """A piece of a block, which is opened where another one is."""
        out = list[bytes]()
        if kind != self._block:
            out += (*self._close(), *self._open(kind))
            self._block = kind
        return [*out, self._delta(kind, text)]

    def _close(self) -> list[bytes]:
        kind, self._block = self._block, ""
        return self._closed(kind) if kind else []

    # -- how a stream of events has it; another kind of stream has neither comments nor these

    def _aside(self, frame: bytes) -> bytes:
        """A frame of the backend's that says nothing of the answer."""
        return frame if frame.startswith(b":") else b""

    def _comment(self, comment: str) -> bytes:
        """A comment that keeps the connection alive, or tells something besides the answer."""
        return sse.comment(comment)

    # -- what a dialect says

    def _begin(self, identity: Identity, prompt_tokens: int) -> list[bytes]:
        """The head of the answer."""
        del identity, prompt_tokens
        return []

    def _compaction(self, compaction: SealedCompaction) -> list[bytes]:
        """The compaction that the answer begins with."""
        del compaction
        return []

    def _open(self, kind: str) -> list[bytes]:
        """The beginning of a block."""
        del kind
        return []

    def _delta(self, kind: str, text: str) -> bytes:
        """A piece of the open block."""
        raise NotImplementedError

    def _closed(self, kind: str) -> list[bytes]:
        """The end of a block."""
        del kind
        return []

    def _call(self, part: CallPart, number: int, begins: bool) -> list[bytes]:  # noqa: FBT001 - of a pair that is unpacked
        """A piece of the call of this number, which it may begin."""
        raise NotImplementedError

    def _ended(self) -> list[bytes]:
        """The end of the answer."""
        raise NotImplementedError

    def _failed(self, error: Any) -> bytes:
        """An error, after which nothing comes."""
        raise NotImplementedError

    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        """An answer in one body."""
        raise NotImplementedError


def named_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An event that is named, and says its kind once more in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


class Calls:
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

    def complete(self) -> list[CallPart]:
        """All calls, as far as they have come."""
        return [
            replace(first, arguments="".join(parts)) for first, parts in zip(self._first, self._arguments, strict=True)
        ]
