"""Answers of a model that writes calls as text, as a backend with tools of its own would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from proxy.answer.frames import encoded, is_done, object_of
from proxy.emulation.arguments import CUT
from proxy.emulation.offer import Offer
from proxy.emulation.protocol import call_text
from proxy.emulation.scanner import Call, CallScanner, Malformed, Piece, Text, joined
from proxy.wire import sse

_COUNTS = ("usage", "timings")
"""Fields of a chunk that are about all of it."""
UNFINISHED = ("length", "content_filter", "error")
"""Finish reasons of answers that the model did not end (OpenAI API, "The chat completion object"; the last is OpenRouter's)."""


@dataclass(slots=True)
class FormCount:
    """What became of the calls that were written in one form."""

    called: int = 0
    repaired: int = 0
    """Of those that were called."""
    malformed: int = 0


@dataclass(slots=True)
class _Choice:
    scanner: CallScanner
    calls: int
    closed: bool = False


class EmulatedStream:
    """Server-sent events in, server-sent events out; frames that say nothing of calls pass byte for byte.

    From the first call on that can't be made, everything but comments is held back: the owner asks the model once more, or
    gives up, which sends all of it as text. An error of the backend is passed on at once, without the call that it cut off.
    """

    def __init__(
        self, offer: Offer, make_id: Callable[[], str], *, calls_before: int = 0, said: str = ""
    ) -> None:
        """`make_id` makes ids of calls.

        `calls_before` counts the calls of earlier attempts at the same answer, `said` is the text that those have sent, both of
        the first choice: reading goes on behind it.
        """
        self._offer = offer
        self._make_id = make_id
        self._splitter = sse.FrameSplitter()
        self._choices: dict[int, _Choice] = {}
        self._calls_before = calls_before
        self._before = said
        self._template: dict[str, Any] = {}
        """The newest chunk with choices, without them."""
        self._tail: list[bytes] = []
        self._tail_text: list[str] = []
        self._tail_calls: list[str] = []
        self._tail_size = 0
        self._holding = False
        self._failed = False
        self._written: list[str] = []
        self.malformed: list[Malformed] = []
        self.stats: dict[str, FormCount] = {}
        """By the name of the form."""

    @property
    def calls(self) -> int:
        """How many calls were sent, over all choices."""
        return len(self._written)

    @property
    def written_calls(self) -> str:
        """The calls that were sent, in the form that is taught, one after the other. Costs its length."""
        return "\n".join(self._written)

    @property
    def held(self) -> str:
        """Text that was generated and not sent. Costs its length."""
        return "".join((*self._tail_text, *(choice.scanner.held for choice in self._choices.values())))

    @property
    def held_size(self) -> int:
        """Characters of that text."""
        return self._tail_size + sum(choice.scanner.held_size for choice in self._choices.values())

    def feed(self, data: bytes) -> bytes:
        """Take in the next bytes of the backend's stream; what may be sent now."""
        return b"".join(map(self._frame, sse.frames(self._splitter.feed(data))))

    def close(self) -> bytes:
        """End the stream; what is left of it, but for what waits for the owner's decision."""
        rest = b"".join(map(self._frame, sse.frames(self._splitter.flush())))
        return rest + self._flush(cut=True)

    def give_up(self) -> bytes:
        """Send what was held back: calls that can't be made as the text that they were written in."""
        tail = b"".join(self._tail)
        self._written += self._tail_calls
        self._tail, self._tail_text, self._tail_calls, self._holding = [], [], [], False
        self._tail_size = 0
        return tail

    def _frame(self, frame: bytes) -> bytes:
        data = sse.data_of(frame)
        if data is None:
            return frame
        if is_done(data):
            return self._flush(cut=False) + self._sent(frame)
        chunk = object_of(data)
        choices = chunk.get("choices") if chunk is not None else None
        ended = self._fail() if chunk and chunk.get("error") else b""
        if chunk is None or not isinstance(choices, list):
            return ended + self._sent(frame)
        if choices:
            self._template = {key: value for key, value in chunk.items() if key not in _COUNTS}
        said = [self._said(choice) for choice in choices]
        if all(own is None for own in said):
            return ended + self._sent(frame)
        parts = [
            part
            for choice, own in zip(choices, said, strict=True)
            for part in ([_Part(choice)] if own is None else own)
        ]
        counts = {key: chunk[key] for key in _COUNTS if chunk.get(key) is not None}
        if counts and not parts:
            parts = [_Part({**choices[0], "delta": {}})]
        return ended + self._sent_parts(parts, counts)

    def _fail(self) -> bytes:
        """The backend reports an error: what is held but no call that it cut off, which is no fault of the model's.

        What waits for the owner's decision goes on waiting; what comes from now on does not.
        """
        sent = self._flush(cut=True, failed=True)
        self._failed = True
        return sent

    def _flush(self, *, cut: bool, failed: bool = False) -> bytes:
        """Say what is still held where the stream ends without a finish reason."""
        parts: list[_Part] = []
        for index, own in self._choices.items():
            if not own.closed:
                own.closed = True
                pieces = own.scanner.close(cut=cut)
                if failed:
                    pieces = _without_half_calls(pieces)
                parts += self._parts({"index": index, "delta": {}, "finish_reason": None}, own, pieces, None)
        return self._sent_parts(parts, {})

    def _said(self, choice: Any) -> list[_Part] | None:
        """What a choice of a chunk says now; None if that is what it said."""
        delta = choice.get("delta") if isinstance(choice, dict) else None
        finish = choice.get("finish_reason") if isinstance(choice, dict) else None
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if self._failed or not isinstance(index, int) or not (isinstance(delta, dict) or finish):
            return None
        content = delta.get("content") if isinstance(delta, dict) else None
        text = content if isinstance(content, str) else ""
        if index not in self._choices:
            self._choices[index] = self._choice(index)
        own = self._choices[index]
        if own.closed:
            return None
        pieces = own.scanner.feed(text)
        if finish:
            own.closed = True
            pieces = joined([*pieces, *own.scanner.close(cut=finish in UNFINISHED)])
            if has_ended(finish) and not own.calls and missing(self._offer, pieces):
                pieces.append(NO_CALL)
        named = self._finish(finish, own, pieces)
        if pieces == ([Text(text)] if text else []) and named == finish:
            return None
        return self._parts({**choice, "delta": delta or {}}, own, pieces, named)

    def _finish(self, finish: Any, own: _Choice, pieces: Sequence[Piece]) -> Any:
        calls = own.calls or any(isinstance(piece, Call) for piece in pieces)
        return ended_with(finish, self._offer) if calls else finish

    def _choice(self, index: int) -> _Choice:
        scanner = CallScanner(self._offer)
        if index == 0:
            scanner.resume(self._before, called=self._calls_before > 0)
        return _Choice(scanner, self._calls_before)

    def _parts(
        self, choice: dict[str, Any], own: _Choice, pieces: Sequence[Piece], finish: Any
    ) -> list[_Part]:
        """Pieces as deltas; other fields of the delta they came with go before, the finish reason behind."""
        others = {key: value for key, value in choice["delta"].items() if key != "content"}
        says = any(value not in (None, "", []) for value in others.values())
        parts: list[_Part] = []
        if says and not (pieces and isinstance(pieces[0], Text)):
            parts.append(_Part({**choice, "delta": others, "finish_reason": None}))
            others = {}
        for piece in pieces:
            said = {"content": piece.text} if not isinstance(piece, Call) else self._call(piece, own)
            parts.append(_Part({**choice, "delta": {**others, **said}, "finish_reason": None}, piece))
            others = {}
            self._count(piece)
        if finish:
            last = parts[-1] if parts else None
            if last is None or isinstance(last.piece, Call | Malformed):
                parts.append(_Part({**choice, "delta": others, "finish_reason": finish}))
            else:
                last.choice["finish_reason"] = finish
        return parts

    def _call(self, call: Call, own: _Choice) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        index, own.calls = own.calls, own.calls + 1
        if self._offer.legacy:
            return {"function_call": function}
        made = {"index": index, "id": self._make_id(), "type": "function", "function": function}
        return {"tool_calls": [made]}

    def _count(self, piece: Piece) -> None:
        count(self.stats, piece)
        if isinstance(piece, Malformed):
            self.malformed.append(piece)

    def _sent_parts(self, parts: Sequence[_Part], counts: dict[str, Any]) -> bytes:
        sent = b""
        for part, following in zip_longest(parts, parts[1:]):
            space = isinstance(part.piece, Text) and part.piece.text.isspace()
            if isinstance(part.piece, Malformed) or (
                space and following and isinstance(following.piece, Malformed)
            ):
                self._holding = True
            if isinstance(part.piece, Call):
                written = call_text(part.piece.name, part.piece.arguments)
                (self._tail_calls if self._holding else self._written).append(written)
            if self._holding and part.piece is not None:
                piece = part.piece
                self._tail_text.append(piece.arguments if isinstance(piece, Call) else piece.text)
                self._tail_size += len(self._tail_text[-1])
            last = counts if part is parts[-1] else {}
            sent += self._sent(encoded({**self._template, **last, "choices": [part.choice]}))
        return sent

    def _sent(self, frame: bytes) -> bytes:
        if self._failed or not self._holding:
            return frame
        self._tail.append(frame)
        return b""


@dataclass(slots=True, eq=False)
class _Part:
    """One choice of a chunk of our own, and the piece that it says."""

    choice: Any
    piece: Piece | None = None


NO_CALL = Malformed("", "none", "no tool was called, and one has to be")
"""Stands at the end of an answer without the call that `tool_choice` demands."""


def missing(offer: Offer, pieces: Sequence[Piece]) -> bool:
    """Whether there is no call, right or wrong, although one has to be made."""
    return offer.choice in ("required", "named") and all(isinstance(piece, Text) for piece in pieces)


def has_ended(finish: Any) -> bool:
    """Whether a finish reason, by whatever name, says that the model came to an end of its own."""
    return bool(finish) and finish not in UNFINISHED


def ended_with(finish: Any, offer: Offer) -> Any:
    """The finish reason of an answer that holds calls. Some backends have words of their own for `stop`."""
    if not has_ended(finish):
        return finish
    return "function_call" if offer.legacy else "tool_calls"


def _without_half_calls(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces of an answer that an error ended: without calls that it cut off, others that can't be made as text."""
    kept: list[Piece] = []
    for piece in pieces:
        if not isinstance(piece, Malformed):
            kept.append(piece)
        elif piece.reason != CUT:
            kept.append(Text(piece.text))
        elif kept and isinstance(before := kept[-1], Text):
            # The white space before a call goes with it.
            kept[-1] = Text(before.text.rstrip())
    return [piece for piece in joined(kept) if piece != Text("")]


def count(stats: dict[str, FormCount], piece: Piece) -> None:
    """Count a piece under its form."""
    if isinstance(piece, Text):
        return
    own = stats.setdefault(piece.form, FormCount())
    if isinstance(piece, Malformed):
        own.malformed += 1
    else:
        own.called += 1
        own.repaired += bool(piece.repairs)
