"""What comes in of an answer: frames are read into pieces, and calls that were written as text into calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.answer.answer import Answer
from proxy.answer.calls import CallReader
from proxy.answer.duplicates import RepeatedInChoices
from proxy.answer.events import Correct
from proxy.answer.searching import SearchCalls, own
from proxy.answer.template import Template
from proxy.answer.watch import Watch
from proxy.neutral.dialect import Reader
from proxy.neutral.piece import CallPart, Piece
from proxy.wire import sse


class Inlet:
    """The way in. What a reader of calls still keeps to itself is counted in the answer as unseen."""

    def __init__(
        self, watch: Watch, answer: Answer, reader: Reader, calls: Callable[[], CallReader | None]
    ) -> None:
        self._watch = watch
        self._answer = answer
        self._reader = reader
        self._make_calls = calls
        self.next_attempt()

    def next_attempt(self) -> None:
        """Get ready for the bytes of another attempt."""
        self.splitter = sse.FrameSplitter()
        self.calls = self._make_calls()
        self._heard = self._answer.text_size
        """Characters of the answer that the reader of calls knows of."""
        self._twice = RepeatedInChoices()
        self._own = SearchCalls(self._watch.search)
        self.instead: Sequence[Piece] | None = None
        """What to send if nobody corrects the calls in it; None: there is nothing to be corrected."""

    def read(self, frame: bytes) -> Sequence[Piece]:
        """What is said with a frame; nothing while it may be a call."""
        return self.take(self._reader.read(frame))

    def take(self, piece: Piece) -> Sequence[Piece]:
        """What is said with a piece; the same."""
        if self.calls is None:
            calls = piece.calls or piece.beside or not self._twice.idle
            return self._once((piece,)) if calls else (piece,)
        self.calls.missed(self._answer.text_since(self._heard))
        ready = self.calls.feed(piece)
        if piece.trailer and piece not in ready:
            self._answer.report(piece)  # what it counts holds, though nothing behind a wrong call is said
        self._answer.attempt.unseen = self.calls.unseen
        return self._once(ready)

    def settle(self, template: Template) -> None:
        """Say which frames need not be read, now that what was read is said."""
        if self.calls is None:
            return
        self._heard = self._answer.text_size
        template.suspects = self.calls.suspects
        if self.calls.holding:
            template.forget()

    def _once(self, pieces: Sequence[Piece], *, ended: bool = False) -> Sequence[Piece]:
        """The pieces without calls that the attempt has made before; what is left of those if it has `ended`."""
        said = [each for piece in pieces for each in self._twice.feed(piece)]
        said += self._twice.close() if ended else ()
        for text in self._twice.dropped():
            self._answer.repeated(text)
        return said

    def sorted(self, piece: Piece) -> Piece:
        """A piece of an attempt that is a search, or without searches, which come too late in it."""
        attempt = self._answer.attempt
        attempt.searching |= self._own.begins(piece, attempt)
        return piece if attempt.searching else self._own.less(piece)

    @property
    def searched(self) -> bool:
        """Whether the attempt is a search, and was not cut off in it."""
        return self._answer.attempt.searching and self._answer.attempt.finish != "length"

    @property
    def searches(self) -> tuple[CallPart, ...]:
        """The calls of Spillway's own tool that were made."""
        return own(self._answer.calls.whole, self._watch.search)

    def rest(self) -> list[bytes]:
        """The frames that are left at the end of the body, but for one that was cut off in the middle."""
        frames = sse.frames(self.splitter.flush())
        return frames[:-1] if frames and self._reader.torn(frames[-1]) else frames

    def close(self) -> Sequence[Piece]:
        """What is left to say at the end of an attempt, but for what has to be corrected."""
        rest = () if self.calls is None else self.calls.close()
        self._answer.attempt.unseen = 0
        return self._once(rest, ended=True)

    def corrected(self) -> Correct | Sequence[Piece]:
        """What has to be corrected, or what is to be said because it can't be."""
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
        if self._watch.tokens_left(answer) == 0:
            return instead
        # The call is asked for again where the window ended it.
        answer.attempt.in_vain = answer.attempt.calling = answer.attempt.withheld = True
        answer.attempt.dropped += answer.count(wrong.written)
        return ending


def _end_of(piece: Piece) -> Piece:
    """What a piece says of the end of the answer, without what it says in words."""
    return replace(piece, frame=b"", text="") if piece.text else piece
