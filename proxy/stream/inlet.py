"""Reading one attempt: turns frames into pieces, and calls written as text into calls; separates those that Spillway answers.

A model may call several tools at a time. If the first call is for Spillway, Spillway answers that, and drops the other
calls, which the client has not seen: the model can make them again. If the first call is for the client, which may have it
already, later calls for Spillway are dropped, and the model can make them in its next step.
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
"""Makes a reader of calls written as text for the next attempt, or None if calls are not written as text."""
_COMPARED = 64
"""Latest calls of the same name that a call is compared with. A model that writes more in one answer is looping anyway."""


class Inlet:
    """The way in. Text that a reader of calls still holds is counted in the answer as unseen."""

    def __init__(self, watch: Watch, answer: Answer, make_reader: MakeReader) -> None:
        self._answer = answer
        self._make_reader = make_reader
        self.next_attempt(watch)

    def next_attempt(self, watch: Watch) -> None:
        """Get ready for the bytes of another attempt, which has these limits."""
        self._watch = watch
        self.splitter = sse.FrameSplitter()
        self.calls = self._make_reader()
        self._front: Front | None = None
        """Reader of marks before the text, or None if the text begins without any."""
        self._begun = False
        """Whether the text, or a mark before it, has begun."""
        self._tables: dict[int, CallTable] = {}
        """Table of calls for each choice that makes calls."""
        self._repeated: RepeatedCalls | None = None
        """Filter of repeated calls, or None before the first call."""
        self._calling = False

    def take(self, piece: Piece) -> Sequence[Piece]:
        """Return the pieces that the client may get now; none while the text may be a call."""
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
        # A finish reason may contradict the calls before it, or claim calls where there are none.
        belied = piece.finish and (self._tables or piece.finish == "tool_calls")
        pieces = self._in_order(piece) if piece.calls or belied or piece.other_choices else (piece,)
        if self.calls is None:
            return self._for_client(pieces)
        ready = [out for each in pieces for out in self.calls.feed(each)]
        self._answer.attempt.unseen = self.calls.unseen
        return self._for_client(ready)

    def _in_order(self, piece: Piece) -> Sequence[Piece]:
        """Put the calls of a piece in order. If that changes one of several choices, each comes as a piece of its own."""
        came = piece.by_choice() if piece.other_choices else [piece]
        ordered = [self._table(each.index).feed(each) if each.calls or each.finish else each for each in came]
        return (piece,) if all(map(is_, came, ordered)) else ordered

    def _table(self, index: int) -> CallTable:
        if index not in self._tables:
            answer, attempt = self._answer, len(self._answer.attempts) - 1
            # The client has never seen calls that Spillway answered, and such an attempt has no others.
            seen = 0 if any(each.searching for each in answer.attempts) else len(answer.calls)
            self._tables[index] = CallTable(f"{answer.unique}{attempt or ''}", seen if attempt else 0)
        return self._tables[index]

    def close(self) -> Sequence[Piece]:
        """Return the pieces still held at the end of an attempt, except faulty calls that have to be corrected."""
        front = [out for each in self._front.close() for out in self._read(each)] if self._front is not None else []
        rest = () if self.calls is None else self.calls.close()
        self._answer.attempt.unseen = 0
        return [*front, *self._for_client(rest, ended=True)]

    def rest(self) -> list[bytes]:
        """Return the last frames of the body, without one that was cut off in the middle."""
        frames = sse.frames(self.splitter.flush())
        return frames[:-1] if frames and is_torn(frames[-1]) else frames

    def correction(self) -> tuple[Correct | None, Sequence[Piece]]:
        """Return the calls to correct, and the pieces to send if that fails. With None, the pieces are sent in any case."""
        wrong = self.calls.correction() if self.calls is not None else None
        if self.calls is None or wrong is None or self._answer.attempt.searching:
            return None, ()
        answer, instead = self._answer, self.calls.give_up()
        self.calls = None
        if not any(piece.finish == "length" for piece in instead):
            return wrong, instead
        # The answer ended in the middle of a call, by the client's bound or for lack of room.
        ends = [piece for piece in instead if piece.finish or not (piece.text or piece.calls)]
        ending = [replace(piece, frame=b"", text="") if piece.text else piece for piece in ends]
        for piece in ending:
            answer.add(piece)
        if self._watch.remaining_tokens(answer) == 0:
            return None, instead
        # The window ended it: another attempt makes the call again.
        answer.attempt.calling = answer.attempt.withheld = True
        answer.attempt.dropped += answer.count(wrong.written)
        return None, ending

    def _for_client(self, pieces: Sequence[Piece], *, ended: bool = False) -> Sequence[Piece]:
        """Remove calls that the attempt has made before, and calls for Spillway after others.

        Answers with several choices are left as they are.
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
        """Remove calls for Spillway from a piece, unless Spillway answers the calls of this attempt: then it stays unchanged."""
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
    """Removes calls that an attempt makes twice, with the same name and arguments; the first one stays.

    A model that asks for the same thing twice in one message gains nothing, and clients run both calls, or show both for
    approval. A call whose name was called before, or is in `held`, is held until it is complete. If one is removed, those
    after it move up in the client's list.
    """

    def __init__(self, drop: Callable[[str], None], held: Container[str] = ()) -> None:
        """`drop` receives name and arguments, joined, of each removed call; `held` are names of tools."""
        self._drop = drop
        self._names = held
        self.unseen = 0
        """Tokens of the held call: each part counts as one, like a delta."""
        self._dropped = 0
        self._made: dict[str, list[str]] = {}
        """Arguments of the calls made so far, by name."""
        self._call: CallPart | None = None
        """The newest call, joined from the parts received."""
        self._held = False
        self._like = Piece()
        """The newest piece with calls."""
        self._places: dict[int | None, int | None] = {}
        """Index of a call in the client's list, by its index in the backend's."""

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece, and return pieces to pass on now."""
        ends = bool(piece.finish) or piece.done or bool(piece.error)
        if not piece.calls:
            return [*self.close(), piece] if ends else [piece]
        self._like = piece
        parts = [out for part in piece.calls for out in self._part(part)]
        parts += self._settled() if ends else ()
        return [piece] if parts == list(piece.calls) else [replace(piece, frame=b"", bare=True, calls=tuple(parts))]

    def close(self) -> list[Piece]:
        """Return what is held at the end of the stream."""
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
        """Finish the newest call, which is complete: return its held parts, or drop it as a repetition."""
        call, self._call, self.unseen = self._call, None, 0
        if call is None or not call.name:  # a call of an unknown kind
            return []
        earlier = self._made.setdefault(call.name, [])
        if self._held and any(same_json(call.arguments, each) for each in earlier[-_COMPARED:]):
            self._dropped += 1
            self._drop(call.name + call.arguments)
            return []
        earlier.append(call.arguments)
        return [self._placed(call)] if self._held else []

    def _placed(self, part: CallPart) -> CallPart:
        """Give a part its index in the client's list."""
        if part.index is not None and part.index not in self._places:
            self._places[part.index] = part.index - self._dropped
        place = self._places.get(part.index, part.index)
        return part if place == part.index else replace(part, index=place)
