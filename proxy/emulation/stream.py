"""Answers of a model that writes calls as text, as a backend with tools of its own would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from proxy.core.piece import CallPart, Piece, calls_finish
from proxy.emulation.calls import (
    NO_CALL,
    UNFINISHED,
    Call,
    CallFault,
    FormCount,
    Malformed,
    Scanned,
    Text,
    fault_of,
    texts_joined,
)
from proxy.emulation.offer import Offer
from proxy.emulation.protocol import call_text, complaint
from proxy.emulation.repair import CUT
from proxy.emulation.scanner import CallScanner
from proxy.stream.events import Correct

_COUNTS = ("usage", "prompt_tokens", "completion_tokens")


@dataclass(slots=True)
class _Choice:
    scanner: CallScanner
    calls: int
    last: Piece
    """The newest piece of it."""
    closed: bool = False


@dataclass(slots=True)
class _Part:
    """A piece of our own, and what was found that it says."""

    says: Piece
    found: Scanned | None = None

    @property
    def text(self) -> str:
        """Text that was generated of it."""
        if self.found is None:
            return ""
        return self.found.arguments if isinstance(self.found, Call) else self.found.text


class EmulatedStream:
    """Pieces in, pieces out; those that say nothing of calls pass as they are.

    From the first call on that can't be made, everything but comments is held back: the owner asks the model once more, or
    gives up, which sends all of it as text. An error of the backend is passed on at once, without the call that it cut off.
    """

    def __init__(
        self,
        offer: Offer,
        make_id: Callable[[], str],
        count_tokens: Callable[[str], int],
        *,
        calls_before: int = 0,
        text_before: str = "",
    ) -> None:
        """`make_id` makes ids of calls, `count_tokens` counts those of a text.

        `calls_before` counts the calls of earlier attempts at the same answer, `text_before` is the text that those have sent, both of
        the first choice: reading goes on behind it.
        """
        self._offer = offer
        self._make_id = make_id
        self._count_tokens = count_tokens
        self._calls_before = calls_before
        self._before = text_before
        self._choices: dict[int, _Choice] = {}
        self._tail: list[_Part] = []
        """What is held back from a call on that can't be made."""
        self._tail_size = 0
        self._failed = False
        self._written: list[str] = []
        self._measured = (0, 0)
        self.malformed: list[Malformed] = []
        self.stats: dict[str, FormCount] = {}
        """By the name of the form."""
        self.faults: list[CallFault] = []
        """What is wrong with calls; the owner takes them out."""
        self.unknown: list[CallFault] = []
        """All of tools that are not offered: their calls stay text, so that later attempts know of them."""
        self.leaked = 0
        """None: calls are meant to be text here."""

    @property
    def calls(self) -> int:
        """Number of calls that were sent, over all choices."""
        return len(self._written)

    @property
    def written_calls(self) -> str:
        """The calls that were sent, in the form that is taught, one after the other. Costs its length."""
        return "\n".join(self._written)

    @property
    def held(self) -> str:
        """Text that was generated and not sent. Costs its length."""
        unread = (choice.scanner.held for choice in self._choices.values())
        return "".join((*(part.text for part in self._tail), *unread))

    @property
    def held_size(self) -> int:
        """Characters of that text."""
        return self._tail_size + sum(choice.scanner.held_size for choice in self._choices.values())

    @property
    def unseen(self) -> int:
        """Tokens of it; counted anew when they are half as many again, so that a long call costs its length."""
        size = self.held_size
        if size == 0:
            return 0
        length, tokens = self._measured
        if not length <= size < length * 1.5:
            length, tokens = self._measured = size, max(1, self._count_tokens(self.held))
        return max(1, tokens * size // length)

    @property
    def holding(self) -> bool:
        """Every piece has to be read: what may be said is never known from its bytes."""
        return True

    @property
    def suspects(self) -> None:
        """There is nothing that need not be read."""

    def missed(self, text: str) -> None:
        """Nothing is ever missed."""

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece of the backend's stream; what may be said now."""
        if piece.aside:
            return [piece]
        if piece.done:
            return [*self._flush(cut=False), *self._sent([_Part(piece)])]
        ended: list[Piece] = []
        if piece.error:
            ended = self._flush(cut=True, failed=True)
            # What waits for the owner's decision goes on waiting; what comes from now on does not.
            self._failed = True
        choices = (piece, *piece.other_choices)
        read = [self._read_choice(choice) for choice in choices]
        if all(choice_parts is None for choice_parts in read):
            return [*ended, *self._sent([_Part(piece)])]
        parts = [
            part
            for choice, choice_parts in zip(choices, read, strict=True)
            for part in ([_Part(choice.uncounted())] if choice_parts is None else choice_parts)
        ]
        counts = {name: getattr(piece, name) for name in _COUNTS}
        if not parts and any(counts.values()):
            parts = [_Part(piece.blank())]
        if parts:
            parts[-1].says = replace(parts[-1].says, **counts)
        return [*ended, *self._sent(parts)]

    def close(self) -> list[Piece]:
        """End the attempt; what is left of it, but for what waits for the owner's decision."""
        return self._flush(cut=True)

    def correction(self) -> Correct | None:
        """Correction that the model is asked for; None: nothing has to be corrected."""
        if not self.malformed:
            return None
        written = "\n".join(filter(None, (self.written_calls, self.held)))
        return Correct(written, complaint(self.malformed), tuple(call.form for call in self.malformed))

    def give_up(self) -> list[Piece]:
        """Release what was held back: calls that can't be made as the text that they were written in."""
        tail, self._tail, self._tail_size = self._tail, [], 0
        return [self._out(part) for part in tail]

    def _flush(self, *, cut: bool, failed: bool = False) -> list[Piece]:
        """Say what is still held where the stream ends without a finish reason.

        `failed`: with an error, so that a call that it cut off is no fault of the model's, and left out.
        """
        parts: list[_Part] = []
        for choice in self._choices.values():
            found = choice.scanner.close(cut=cut)
            self._report_unknown(choice.scanner)
            choice.closed = True
            parts += [
                self._part(choice.last.blank(), each, choice)
                for each in (_without_half_calls(found) if failed else found)
            ]
        return self._sent(parts)

    def _read_choice(self, piece: Piece) -> list[_Part] | None:
        """Parts that a choice consists of now; None if it stays as it is."""
        if self._failed or not piece.choice or piece.index < 0:
            return None
        choice = self._choices.get(piece.index)
        if choice is None:
            choice = self._choices[piece.index] = self._choice(piece)
        if choice.closed:
            return None
        choice.last = piece
        finish = piece.finish
        found = choice.scanner.feed(piece.text)
        self._report_unknown(choice.scanner)
        if finish:
            choice.closed, ended = True, finish not in UNFINISHED
            found = texts_joined([*found, *choice.scanner.close(cut=not ended)])
            self._report_unknown(choice.scanner)
            if ended and (choice.calls or any(isinstance(each, Call) for each in found)):
                # Some backends have words of their own for `stop`.
                finish = calls_finish(legacy=self._offer.legacy)
            elif ended and self._offer.required and all(isinstance(each, Text) for each in found):
                found.append(NO_CALL)
        if found == ([Text(piece.text)] if piece.text else []) and finish == piece.finish:
            return None
        return self._parts(piece, choice, found, finish)

    def _report_unknown(self, scanner: CallScanner) -> None:
        unknown = scanner.unknown_tools()
        self.faults += unknown
        self.unknown += unknown

    def _choice(self, piece: Piece) -> _Choice:
        scanner = CallScanner(self._offer)
        if piece.index == 0:
            scanner.resume(self._before, called=self._calls_before > 0)
        return _Choice(scanner, self._calls_before, piece)

    def _parts(self, piece: Piece, choice: _Choice, found: Sequence[Scanned], finish: str | None) -> list[_Part]:
        """Turn what was found into pieces; other fields of the piece go before, the finish reason behind."""
        says = replace(piece.uncounted(), text="", finish=None)
        parts: list[_Part] = []
        if piece.more and not (found and isinstance(found[0], Text)):
            parts.append(_Part(says))
        for each in found:
            parts.append(self._part(piece.blank() if parts else says, each, choice))
        if finish and (not parts or isinstance(parts[-1].found, Call | Malformed)):
            parts.append(_Part(piece.blank() if parts else says))
        if finish:
            parts[-1].says = replace(parts[-1].says, finish=finish)
        return parts

    def _part(self, like: Piece, found: Scanned, choice: _Choice) -> _Part:
        if isinstance(found, Text):
            return _Part(replace(like, text=found.text), found)
        counted = self.stats.setdefault(found.form, FormCount())
        if isinstance(found, Malformed):
            counted.malformed += 1
            self.malformed.append(found)
            self.faults.append(fault_of(found))
            return _Part(replace(like, text=found.text), found)
        counted.called += 1
        counted.repaired += found.repaired
        return _Part(replace(like, calls=(self._call(found, choice),), bare=True), found)

    def _call(self, call: Call, choice: _Choice) -> CallPart:
        index, choice.calls = choice.calls, choice.calls + 1
        if self._offer.legacy:
            return CallPart(call.name, call.arguments, legacy=True)
        return CallPart(call.name, call.arguments, id=self._make_id(), index=index)

    def _sent(self, parts: Sequence[_Part]) -> list[Piece]:
        """The parts that may go out, the others held back: from a call that can't be made and white space before it on."""
        wrong = (at for at, part in enumerate(parts) if isinstance(part.found, Malformed))
        at = 0 if self._tail else next(wrong, len(parts))
        if self._failed:
            at = len(parts)
        elif 0 < at < len(parts) and parts[at - 1].text.isspace():
            at -= 1
        self._tail += parts[at:]
        self._tail_size += sum(len(part.text) for part in parts[at:])
        return [self._out(part) for part in parts[:at]]

    def _out(self, part: _Part) -> Piece:
        """The piece that goes out."""
        if isinstance(part.found, Call):
            self._written.append(call_text(part.found.name, part.found.arguments))
        return part.says


def _without_half_calls(pieces: Iterable[Scanned]) -> list[Scanned]:
    """The pieces of an answer that an error ended: without calls that it cut off, others that can't be made as text."""
    done: list[Scanned] = []
    for piece in pieces:
        if not isinstance(piece, Malformed):
            done.append(piece)
        elif piece.reason != CUT:
            done.append(Text(piece.text))
        elif done and isinstance(before := done[-1], Text):
            # The white space before a call goes with it.
            done[-1] = Text(before.text.rstrip())
    return [piece for piece in texts_joined(done) if piece != Text("")]
