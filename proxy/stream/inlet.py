"""Reading one attempt: frames into pieces, calls that were written as text into calls, searches apart from other calls.

Models call several tools at a time. A message whose first call is the search of Spillway's own is a search: it is answered
first, and its other calls, of which the client has seen nothing, are left for the model to make once more. Behind a call of
the client's, which has gone out already, a search is left out, for the model to make in its next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from proxy.core import sse
from proxy.core.piece import CallPart, Piece
from proxy.dialects.chat.reading import is_torn, read_frame
from proxy.stream.answer import Answer
from proxy.stream.duplicates import RepeatedCalls
from proxy.stream.events import Correct
from proxy.stream.watch import Watch

if TYPE_CHECKING:
    from proxy.emulation.reader import WrittenCallReader


class Inlet:
    """The way in. What a reader of calls still holds is counted in the answer as unseen."""

    def __init__(self, watch: Watch, answer: Answer, calls: Callable[[], WrittenCallReader | None]) -> None:
        self._watch = watch
        self._answer = answer
        self._make_calls = calls
        self.next_attempt()

    def next_attempt(self) -> None:
        """Get ready for the bytes of another attempt."""
        self.splitter = sse.FrameSplitter()
        self.calls = self._make_calls()
        self._repeated: RepeatedCalls | None = None
        """None until a call is made."""
        self._searches: set[int | None] = set()
        """Indices of calls that are searches."""

    def read(self, frame: bytes) -> Sequence[Piece]:
        """Return what the client may get of a frame; nothing while it may be a call."""
        return self.take(read_frame(frame))

    def take(self, piece: Piece) -> Sequence[Piece]:
        """Return what the client may get of a piece."""
        if self.calls is None:
            return self._once((piece,))
        ready = self.calls.feed(piece)
        self._answer.attempt.unseen = self.calls.unseen
        return self._once(ready)

    def _once(self, pieces: Sequence[Piece], *, ended: bool = False) -> Sequence[Piece]:
        """Return the pieces without calls that the attempt has made before. Several choices are left as they are."""
        if self._repeated is None:
            if not any(piece.calls for piece in pieces):
                return pieces
            self._repeated = RepeatedCalls()
        repeated = self._repeated
        single: list[Piece] = []
        for piece in pieces:
            single += [piece] if piece.other_choices or piece.index or piece.aside else repeated.feed(piece)
        single += repeated.close() if ended else ()
        while len(repeated.dropped) > self._answer.attempt.repeated_calls:
            self._answer.drop_call(repeated.dropped[self._answer.attempt.repeated_calls])
        return single

    def without_searches(self, piece: Piece) -> Piece:
        """Return a piece of an attempt that is a search as it is, any other without searches."""
        calls, attempt, name = piece.calls, self._answer.attempt, self._watch.search
        if not (calls and name):
            return piece
        attempt.searching |= not attempt.calling and calls[0].name == name
        if attempt.searching:
            return piece
        for call in calls:
            if call.name:
                (self._searches.add if call.name == name else self._searches.discard)(call.index)
        rest = tuple([call for call in calls if call.index not in self._searches])
        return piece if len(rest) == len(calls) else replace(piece, frame=b"", bare=True, calls=rest)

    @property
    def searches(self) -> tuple[CallPart, ...] | None:
        """Calls of Spillway's own tool, where the attempt is a search and was not cut off in it; else None."""
        if not self._answer.attempt.searching or self._answer.attempt.finish == "length":
            return None
        return tuple(call for call in self._answer.calls if call.name == self._watch.search)

    def rest(self) -> list[bytes]:
        """Return the frames at the end of the body, but for one that was cut off in the middle."""
        frames = sse.frames(self.splitter.flush())
        return frames[:-1] if frames and is_torn(frames[-1]) else frames

    def close(self) -> Sequence[Piece]:
        """Return what is held at the end of an attempt, but for what has to be corrected."""
        rest = () if self.calls is None else self.calls.close()
        self._answer.attempt.unseen = 0
        return self._once(rest, ended=True)

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
        ending = [_end_of(piece) for piece in instead if piece.finish or not (piece.text or piece.calls)]
        for piece in ending:
            answer.add(piece)
        if self._watch.remaining_tokens(answer) == 0:
            return None, instead
        # The call is asked for again where the window ended it.
        answer.attempt.in_vain = answer.attempt.calling = answer.attempt.withheld = True
        answer.attempt.dropped += answer.count(wrong.written)
        return None, ending


def _end_of(piece: Piece) -> Piece:
    """Return the end of the answer that a piece carries, without its text."""
    return replace(piece, frame=b"", text="") if piece.text else piece
