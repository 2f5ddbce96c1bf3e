"""Reading one attempt: frames into pieces, calls that were written as text into calls, searches apart from other calls.

Models call several tools at a time. A message whose first call is the search of Spillway's own is a search: it is answered
first, and its other calls, of which the client has seen nothing, are left for the model to make once more. Behind a call of
the client's, which has gone out already, a search is left out, for the model to make in its next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.core import sse
from proxy.core.piece import CallPart, Piece
from proxy.dialects.chat.reading import is_torn, read_frame
from proxy.stream.answer import Answer
from proxy.stream.calls import CallReader
from proxy.stream.duplicates import RepeatedInChoices
from proxy.stream.events import Correct
from proxy.stream.template import Template
from proxy.stream.watch import Watch


class Inlet:
    """The way in. What a reader of calls still keeps to itself is counted in the answer as unseen."""

    def __init__(self, watch: Watch, answer: Answer, calls: Callable[[], CallReader | None]) -> None:
        self._watch = watch
        self._answer = answer
        self._make_calls = calls
        self.next_attempt()

    def next_attempt(self) -> None:
        """Get ready for the bytes of another attempt."""
        self.splitter = sse.FrameSplitter()
        self.calls = self._make_calls()
        self._heard = self._answer.text_size
        """Characters of the answer that the reader of calls knows of."""
        self._repeated: RepeatedInChoices | None = None
        """None until a call is made."""
        self._searches: set[int | None] = set()
        """Indices of calls that are searches."""
        self.instead: Sequence[Piece] | None = None
        """What to send if nobody corrects the calls in it; None: there is nothing to be corrected."""

    def read(self, frame: bytes) -> Sequence[Piece]:
        """Return what the client may get of a frame; nothing while it may be a call."""
        return self.take(read_frame(frame))

    def take(self, piece: Piece) -> Sequence[Piece]:
        """Return what the client may get of a piece."""
        if self.calls is None:
            return self._once((piece,))
        self.calls.missed(self._answer.text_since(self._heard))
        ready = self.calls.feed(piece)
        self._answer.attempt.unseen = self.calls.unseen
        return self._once(ready)

    def settle(self, template: Template) -> None:
        """Tell the template which frames need not be read, now that those before them are sent."""
        if self.calls is None:
            return
        self._heard = self._answer.text_size
        template.suspects = self.calls.suspects
        if self.calls.holding:
            template.forget()

    def _once(self, pieces: Sequence[Piece], *, ended: bool = False) -> Sequence[Piece]:
        """Return the pieces without calls that the attempt has made before, and what is held of those if it has `ended`."""
        if self._repeated is None:
            if not any(piece.calls or piece.other_choices for piece in pieces):
                return pieces
            self._repeated = RepeatedInChoices()
        single = [each for piece in pieces for each in self._repeated.feed(piece)]
        single += self._repeated.close() if ended else ()
        for text in self._repeated.dropped():
            self._answer.repeated(text)
        return single

    def sorted(self, piece: Piece) -> Piece:
        """Return a piece of an attempt that is a search as it is, any other without searches."""
        calls, attempt = piece.calls, self._answer.attempt
        if not (calls and self._watch.search):
            return piece
        attempt.searching |= not attempt.calling and calls[0].name == self._watch.search
        if attempt.searching:
            return piece
        rest = tuple(call for call in calls if not self._is_search(call))
        return piece if len(rest) == len(calls) else replace(piece, frame=b"", bare=True, calls=rest)

    def _is_search(self, call: CallPart) -> bool:
        if call.name:
            is_search = call.name == self._watch.search
            (self._searches.add if is_search else self._searches.discard)(call.index)
        return call.index in self._searches

    @property
    def searched(self) -> bool:
        """Return whether the attempt is a search, and was not cut off in it."""
        return self._answer.attempt.searching and self._answer.attempt.finish != "length"

    @property
    def searches(self) -> tuple[CallPart, ...]:
        """Calls of Spillway's own tool."""
        return tuple(call for call in self._answer.calls.whole if call.name == self._watch.search)

    def rest(self) -> list[bytes]:
        """Return the frames at the end of the body, but for one that was cut off in the middle."""
        frames = sse.frames(self.splitter.flush())
        return frames[:-1] if frames and is_torn(frames[-1]) else frames

    def close(self) -> Sequence[Piece]:
        """Return what is held at the end of an attempt, but for what has to be corrected."""
        rest = () if self.calls is None else self.calls.close()
        self._answer.attempt.unseen = 0
        return self._once(rest, ended=True)

    def corrected(self) -> Correct | Sequence[Piece]:
        """Return what has to be corrected, or the pieces to send because it can't be."""
        wrong = self.calls.correction() if self.calls is not None else None
        if self.calls is None or wrong is None or self._answer.attempt.searching:
            return ()
        answer, instead = self._answer, self.calls.give_up()
        if not any(piece.finish == "length" for piece in instead):
            self.instead = instead
            return wrong
        # Ended in the middle of a call: by the client's bound, or for want of room.
        ending = [_end_of(piece) for piece in instead if piece.finish or not (piece.text or piece.calls)]
        for piece in ending:
            answer.add(piece)
        if self._watch.remaining_tokens(answer) == 0:
            return instead
        # The call is asked for again where the window ended it.
        answer.attempt.in_vain = answer.attempt.calling = answer.attempt.withheld = True
        answer.attempt.dropped += answer.count(wrong.written)
        return ending


def _end_of(piece: Piece) -> Piece:
    """Return the end of the answer that a piece tells, without its text."""
    return replace(piece, frame=b"", text="") if piece.text else piece
