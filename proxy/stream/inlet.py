"""Reading one attempt: frames into pieces, calls that were written as text into calls, those that Spillway answers apart from others.

Models call several tools at a time. A message whose first call is one that Spillway answers is answered first, and its
other calls, of which the client has seen nothing, are left for the model to make once more. Behind a call of the client's,
which has gone out already, such a call is left out, for the model to make in its next step.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, TypeAlias

from proxy.core import sse
from proxy.core.jsontext import same_json
from proxy.core.piece import CallPart, Piece
from proxy.dialects.chat.answers import is_torn
from proxy.dialects.chat.reading import CallTable
from proxy.stream.answer import Answer
from proxy.stream.events import Correct
from proxy.stream.thinking import BEGINNINGS, Front
from proxy.stream.watch import Watch

if TYPE_CHECKING:
    from proxy.emulation.reader import WrittenCallReader

MakeReader: TypeAlias = "Callable[[], WrittenCallReader | None]"
"""Makes a reader of calls that are written as text, for the next attempt; None: there are none."""
_COMPARED = 64
"""Calls of one name that another one is compared with: a model that writes more repeats itself for good."""


class Inlet:
    """The way in. What a reader of calls still holds is counted in the answer as unseen."""

    def __init__(self, watch: Watch, answer: Answer, make_reader: MakeReader) -> None:
        self._watch = watch
        self._answer = answer
        self._make_reader = make_reader
        self.next_attempt()

    def next_attempt(self) -> None:
        """Get ready for the bytes of another attempt."""
        self.splitter = sse.FrameSplitter()
        self.calls = self._make_reader()
        self._front: Front | None = None
        """What stands before the text; None: nothing does."""
        self._begun = False
        """Whether the text has begun, or that."""
        self._tables: dict[int, CallTable] = {}
        """Of each choice that makes calls."""
        self._repeated: RepeatedCalls | None = None
        """None until a call is made."""
        self._calling = False

    def take(self, piece: Piece) -> Sequence[Piece]:
        """Return what the client may get of a piece; nothing while it may be a call."""
        if not self._begun:
            begins = piece.text.lstrip()[:1]
            self._begun = bool(begins or piece.calls)
            if begins in BEGINNINGS:
                self._front = Front(self.calls.tools if self.calls else (), resumes=len(self._answer.attempts) > 1)
        if self._front is not None and not self._front.over:
            ready = [out for each in self._front.feed(piece) for out in self._read(each)]
            self._answer.attempt.unseen = len(self._front.held) + (0 if self.calls is None else self.calls.unseen)
            return ready
        return self._read(piece)

    def _read(self, piece: Piece) -> Sequence[Piece]:
        # An end may belie the calls before it, or that there are any.
        belied = piece.finish and (self._tables or piece.finish == "tool_calls")
        pieces = self._in_order(piece) if piece.calls or belied or piece.other_choices else (piece,)
        if self.calls is None:
            return self._for_client(pieces)
        ready = [out for each in pieces for out in self.calls.feed(each)]
        self._answer.attempt.unseen = self.calls.unseen
        return self._for_client(ready)

    def _in_order(self, piece: Piece) -> Sequence[Piece]:
        """Return a piece with its calls in order, each choice by itself where one of several was not; else the same one."""
        came = piece.by_choice() if piece.other_choices else [piece]
        ordered = [self._table(each.index).feed(each) if each.calls or each.finish else each for each in came]
        return (piece,) if all(map(is_, came, ordered)) else ordered

    def _table(self, index: int) -> CallTable:
        if index not in self._tables:
            answer, attempt = self._answer, len(self._answer.attempts) - 1
            # Calls that Spillway answered, which are all of their attempt, the client has never seen.
            seen = 0 if any(each.searching for each in answer.attempts) else len(answer.calls)
            self._tables[index] = CallTable(f"{answer.unique}{attempt or ''}", seen if attempt else 0)
        return self._tables[index]

    def close(self) -> Sequence[Piece]:
        """Return what is held at the end of an attempt, but for what has to be corrected."""
        front = [out for each in self._front.close() for out in self._read(each)] if self._front is not None else []
        rest = () if self.calls is None else self.calls.close()
        self._answer.attempt.unseen = 0
        return [*front, *self._for_client(rest, ended=True)]

    def rest(self) -> list[bytes]:
        """Return the frames at the end of the body, but for one that was cut off in the middle."""
        frames = sse.frames(self.splitter.flush())
        return frames[:-1] if frames and is_torn(frames[-1]) else frames

    def correction(self) -> tuple[Correct | None, Sequence[Piece]]:
        """Return what has to be corrected, and the pieces to send if it can't be; None: they are to be sent in any case."""
        wrong = self.calls.correction() if self.calls is not None else None
        if self.calls is None or wrong is None or self._answer.attempt.searching:
            return None, ()
        answer, instead = self._answer, self.calls.give_up()
        self.calls = None
        if not any(piece.finish == "length" for piece in instead):
            return wrong, instead
        # Ended in the middle of a call: by the client's bound, or for want of room.
        ends = [piece for piece in instead if piece.finish or not (piece.text or piece.calls)]
        ending = [replace(piece, frame=b"", text="") if piece.text else piece for piece in ends]
        for piece in ending:
            answer.add(piece)
        if self._watch.remaining_tokens(answer) == 0:
            return None, instead
        # The call is asked for again where the window ended it.
        answer.attempt.in_vain = answer.attempt.calling = answer.attempt.withheld = True
        answer.attempt.dropped += answer.count(wrong.written)
        return None, ending

    def _for_client(self, pieces: Sequence[Piece], *, ended: bool = False) -> Sequence[Piece]:
        """Return the pieces without calls that the attempt has made before, nor those that Spillway answers beside others.

        Several choices are left as they are.
        """
        if self._repeated is None:
            if not any(piece.calls for piece in pieces):
                return pieces
            self._repeated = RepeatedCalls(self._answer.drop_call, self._watch.builtin)
        single: list[Piece] = []
        for piece in pieces:
            several = piece.other_choices or piece.index or piece.aside
            single += [piece] if several else self._repeated.feed(piece)
        single += self._repeated.close() if ended else ()
        attempt, held = self._answer.attempt, self._repeated.unseen
        attempt.unseen = (0 if ended or self.calls is None else self.calls.unseen) + held
        if held and (attempt.withheld or not attempt.calling) and not any(piece.calls for piece in single):
            attempt.calling = attempt.withheld = True
        else:
            attempt.withheld &= self._answer.mark is not None
        return [self._without_answered(piece) for piece in single] if self._watch.builtin else single

    def _without_answered(self, piece: Piece) -> Piece:
        """Return a piece of an attempt whose calls Spillway answers as it is, any other without such calls."""
        attempt, rest = self._answer.attempt, list[CallPart]()
        for call in () if attempt.searching else piece.calls:
            passed = self._watch.passed(call)
            if passed is None and not self._calling:
                attempt.searching = True
                return piece
            rest += [] if passed is None else [passed]
            self._calling = True
        same = attempt.searching or rest == list(piece.calls)
        return piece if same else replace(piece, frame=b"", bare=True, calls=tuple(rest))


class RepeatedCalls:
    """Leaves out of one attempt's stream calls that it makes twice: same name, same arguments. The first is made.

    A model that asks for the same twice in one breath gains nothing by it, and clients run both, or show both for approval.
    A call whose name was called before, or is `held`, is held until all of it came. Where one is left out, those behind it move up in the
    list that clients make of them.
    """

    def __init__(self, drop: Callable[[str], None], held: Container[str] = ()) -> None:
        """`drop` is given the name and arguments of each call that is left out; `held` are names."""
        self._drop = drop
        self._names = held
        self.unseen = 0
        """Tokens of the call that is held: a part is one, as a delta is."""
        self._dropped = 0
        self._made: dict[str, list[str]] = {}
        """Arguments of the calls that were made, by name."""
        self._call: CallPart | None = None
        """The newest one, as far as it came."""
        self._held = False
        self._like = Piece()
        """The newest piece with calls."""
        self._places: dict[int | None, int | None] = {}
        """Where calls stand in the client's list, by where they stand in the backend's."""

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece; what is to be passed on now."""
        ends = bool(piece.finish) or piece.done or bool(piece.error)
        if not piece.calls:
            return [*self.close(), piece] if ends else [piece]
        self._like = piece
        parts = [out for part in piece.calls for out in self._part(part)]
        parts += self._settled() if ends else ()
        return [piece] if parts == list(piece.calls) else [replace(piece, frame=b"", bare=True, calls=tuple(parts))]

    def close(self) -> list[Piece]:
        """Return what is held where the stream ends."""
        parts = self._settled()
        return [replace(self._like.blank(), calls=tuple(parts))] if parts else []

    def _part(self, part: CallPart) -> list[CallPart]:
        call, before = self._call, []
        if call is not None and part.index == call.index:
            self._call = call.joined(part)
        else:
            before = self._settled()
            self._call, self._held = part, part.name in self._made or part.name in self._names
        self.unseen += self._held
        return before if self._held else [*before, self._placed(part)]

    def _settled(self) -> list[CallPart]:
        """The newest call is complete: it is left out, or what is held of it is passed on."""
        call, self._call, self.unseen = self._call, None, 0
        if call is None or not call.name:  # of a kind that is not known here
            return []
        earlier = self._made.setdefault(call.name, [])
        if self._held and any(same_json(call.arguments, each) for each in earlier[-_COMPARED:]):
            self._dropped += 1
            self._drop(call.name + call.arguments)
            return []
        earlier.append(call.arguments)
        return [self._placed(call)] if self._held else []

    def _placed(self, part: CallPart) -> CallPart:
        """The part with its place in the client's list."""
        if part.index is not None and part.index not in self._places:
            self._places[part.index] = part.index - self._dropped
        place = self._places.get(part.index, part.index)
        return part if place == part.index else replace(part, index=place)
