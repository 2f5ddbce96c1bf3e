"""The state machine of one streamed answer.

The backend's frames are passed on as the bytes they came as. A frame that differs from an earlier one in nothing but a word is
not even parsed; every token is counted all the same, so that a pause falls right at the pause point, between two chunks of text.
After a pause the frames of the next attempt are rewritten to carry the first one's identity, so the client sees one answer. How
the bytes were cut into reads makes no difference to what goes out. `LEGAL` is the whole of it.

A backend that breaks off after the finish reason has broken off nothing: that answer ends in good order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from proxy.backends.refusals import Overflow, recognise, refuses_tools
from proxy.core import sse
from proxy.core.dialect import Writer
from proxy.core.piece import Identity, Piece
from proxy.stream.answer import Answer, Attempt
from proxy.stream.calls import CallReader
from proxy.stream.ending import Ending
from proxy.stream.events import (
    LEGAL,
    AnswerReceived,
    ChunkReceived,
    Commands,
    Correct,
    EndedHere,
    Finish,
    Pause,
    Reopened,
    ResumeFailed,
    Retry,
    Search,
    State,
    Stop,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
    sending,
)
from proxy.stream.inlet import Inlet
from proxy.stream.outlet import Outlet
from proxy.stream.seam import margin
from proxy.stream.watch import Watch

__all__ = ["LEGAL", "State", "StreamSession", "Watch"]

_EMPTY = "The backend answered nothing; most likely the prompt does not fit its context window."


class StreamSession:
    """One answer. Feed events to `handle` and carry out the commands it returns, in order."""

    def __init__(
        self, watch: Watch, answer: Answer, writer: Writer, calls: Callable[[], CallReader | None] = lambda: None
    ) -> None:
        """`calls` makes a reader of calls that are written as text, for the next attempt; None: there are none."""
        self.watch = watch
        self.answer = answer
        self.state = State.RELAYING
        self._writer = writer
        self._inlet = Inlet(watch, answer, calls)
        self._outlet = Outlet(watch, answer, writer)
        self._ending = Ending(watch, answer, writer, self._outlet)
        self._refusal: Piece | None = None
        self.failed = False
        """Whether it ended in an error that Spillway wrote."""
        self._done_seen = False
        self._due = False
        """The pause point is reached: the next word is not taken any more."""
        self._gap = ""
        """White space before the word that was not taken: a quoted answer goes on without it."""
        self._gap_before = ""
        """The same for the running attempt, in case it adds nothing to the answer."""
        self._length_before = -1
        """Characters of the answer before the running attempt."""

    @property
    def delivered(self) -> bool:
        """Return whether the client has got all of the answer; the backend may not have ended the body yet."""
        waiting = self._outlet.ending or self._outlet.withholding or self._outlet.rewriting
        return self.state is State.DONE or (self._done_seen and not waiting)

    def adopt(self, identity: Identity) -> None:
        """Put the answer under an identity that a notice has gone out with, after a chunk that said the role."""
        self.answer.identity = identity
        self.answer.role_sent = True
        self._outlet.renaming = True

    def handle(self, event: StreamEvent) -> Commands:
        """Take in one event.

        Raises:
            ValueError: the event is not legal in this state (a mistake of the driver).
        """
        if (self.state, type(event)) not in LEGAL:
            raise ValueError(f"{type(event).__name__} is not legal while {self.state.value}")
        match event:
            case ChunkReceived(data):
                return self._received(data)
            case AnswerReceived(pieces):
                return self._received_body(pieces)
            case UpstreamEnded() | EndedHere():
                return self._ended(here=isinstance(event, EndedHere))
            case UpstreamFailed(message):
                return self._broke_off(message)
            case Reopened():
                return self._reopened(event)
            case ResumeFailed():
                return self._not_resumed()
        assert_never(event)

    # -- relaying: every method below appends what is to be sent to `out`

    def _received(self, data: bytes) -> Commands:
        out: list[bytes] = []
        frames = sse.frames(self._inlet.splitter.feed(data))
        return sending(out, self._frames(frames, out))

    def _received_body(self, pieces: Sequence[Piece]) -> Commands:
        """Take in an answer that is not paused before its end: what it counts decides whether it is gone on with."""
        out, attempt = list[bytes](), self.answer.attempt
        counts = next((piece for piece in pieces if piece.trailer), Piece())
        attempt.prompt_tokens = counts.prompt_tokens or attempt.prompt_tokens
        for piece in pieces:
            for each in self._inlet.take(piece):
                if stop := self._piece(each, out, at_once=True):
                    return sending(out, stop)
            self._inlet.settle(self._outlet.template)
        self.answer.report(counts)  # it holds, though nothing behind a wrong call is sent
        return self._ends(out, self._close(out))

    def _frames(self, frames: Iterable[bytes], out: list[bytes]) -> Stop | None:
        return next((stop for frame in frames if (stop := self._frame(frame, out))), None)

    def _frame(self, frame: bytes, out: list[bytes]) -> Stop | None:
        if self._outlet.plain(frame, out):
            return None
        stop = self._pieces(self._inlet.read(frame), out)
        if self._inlet.calls is None:
            return stop
        self._inlet.settle(self._outlet.template)
        return stop or (self._pause_if_due(out) if self.answer.attempt.unseen else None)

    def _pieces(self, pieces: Sequence[Piece], out: list[bytes]) -> Stop | None:
        stops = (self._piece(each, out, last=each is pieces[-1]) for each in pieces)
        return next((stop for stop in stops if stop), None)

    def _piece(self, piece: Piece, out: list[bytes], *, last: bool = False, at_once: bool = False) -> Stop | None:
        if piece.form is None:
            return self._beside(piece, out)
        if self._done_seen or self.answer.attempt.errored:
            # No part of the answer any more.
            if self._done_seen and not self._outlet.rewriting:
                self._outlet.other(piece, out)
            return None
        if piece.error is not None:
            return self._error(piece, out)
        if not at_once and (stop := self._word(piece.text or piece.thought, out)):
            return stop
        piece, attempt = self._inlet.sorted(piece), self.answer.attempt
        if piece.calls and self.watch.endangers(self.answer):
            self._outlet.withhold_call(out)
        if not self._outlet.piece(piece, out):
            return self._restarted(out)
        if attempt.finish not in (None, "length") and not attempt.searching:
            self._outlet.release(out)
        # What it counts comes with the last of what a frame says.
        return self._pause_if_due(out) if last else None

    def _beside(self, piece: Piece, out: list[bytes]) -> Stop | None:
        """A frame that is none of the answer's own."""
        if piece.done and (self._ending.lacking or self._inlet.searched):
            self._done_seen = True
            return self._unfinished(out)
        if piece.aside or not self._outlet.rewriting:
            self._outlet.other(piece, out)
        if piece.done:
            self._done_seen = True
            self._ending.marked(out)
        return None

    def _error(self, piece: Piece, out: list[bytes]) -> Stop | None:
        data = sse.data_of(piece.frame) or b""
        overflow, attempt = recognise(200, data), self.answer.attempt
        if overflow is not None and self.answer.begun:
            # Slots that share their memory fill up together, and are cleared together.
            attempt.cleared = overflow.shared and attempt.used < self.watch.pause_point
            if self.watch.may_ask_again(self.answer) or self.watch.may_go_on(self.answer):
                return self._pause("cleared" if attempt.cleared else "window full", out)
            if not attempt.spoke:
                return self._final("length", out)
            attempt.cleared = False
        if not self.answer.begun and (overflow is not None or refuses_tools(200, data)):
            self.state = State.PAUSED
            self._refusal = piece
            return Retry(overflow, data)
        attempt.errored = True
        self._outlet.error(piece, out)
        return None

    # -- pausing

    def _pause_if_due(self, out: list[bytes]) -> Pause | Finish | None:
        if self.watch.called_enough(self.answer):
            # The calls can be made; what a model says after them is most often made up.
            return self._final(self.answer.calls.finish, out)
        if self.answer.attempts[-1].finish is None and self.watch.spent(self.answer):
            return self._pause("no room gained", out, last=True)
        self._due = self.watch.pause_due(self.answer)
        overdue = self._due and self.watch.cancels and self.watch.overdue(self.answer)
        return self._pause("pause point", out) if overdue else None

    def _word(self, text: str, out: list[bytes]) -> Pause | None:
        """If a word begins while a pause is due, the backend will say it again; or withhold it: a bound may cut it."""
        if self.watch.unknown:
            self._outlet.hold_word(text, out)
        if not self._due or not text[:1].isspace():
            return None
        if self.watch.cancels:
            self._gap = "" if self.answer.thinking else margin(text)
            return self._pause("pause point", out)
        if not self.answer.attempt.withheld:
            self._outlet.release(out)
            self._outlet.withhold(out)
        return None

    def _pause(self, reason: str, out: list[bytes], *, last: bool = False) -> Pause:
        attempt = self.answer.attempt
        attempt.in_vain |= (attempt.withheld or attempt.unseen > 0) and not attempt.cleared
        if word := self._outlet.take_back():
            self._gap = margin(word)
        if not self._outlet.flush(out, interrupted=True):
            attempt.restart()
        attempt.restarted |= self.watch.only_copied(attempt)
        if len(self.answer.text) == self._length_before:
            self._gap = self._gap_before  # the word is still to come
        self._due = False
        self.state = State.PAUSED
        return Pause(reason, last or (attempt.restarted and not self.watch.may_go_on(self.answer)))

    def _restarted(self, out: list[bytes]) -> Pause:
        self.answer.attempt.restart()
        return self._pause("restarted", out)

    def _reopened(self, event: Reopened) -> Commands:
        out: list[bytes] = []
        if event.corrects:
            self._outlet.release(out)
        self.watch.settle(event.room)
        self._gap_before = event.gap or self._gap
        self._length_before = len(self.answer.text)
        self._outlet.next_attempt(event, self._gap_before)
        self.answer.attempts.append(Attempt(event.prompt_tokens, bound=event.bound))
        self._inlet.next_attempt()
        self._gap, self._refusal, self._done_seen, self._due = "", None, False, False
        self.state = State.RELAYING
        if event.corrects:
            self._outlet.begin_paragraph()
        return sending(out)

    # -- ending

    def _ended(self, *, here: bool) -> Commands:
        out: list[bytes] = []
        if here:
            return self._finish(out, self._ending.here(out))
        return self._ends(out, self._frames(self._inlet.rest(), out) or self._close(out))

    def _ends(self, out: list[bytes], stop: Stop | None) -> Commands:
        stop = stop or (self._unfinished(out) if self._ending.lacking else self._stop_at_end(out))
        if stop is not None:
            return sending([*out, self._closing(out)], stop)
        return self._finish(out, self._ending.complete(out, marked=self._done_seen))

    def _close(self, out: list[bytes]) -> Stop | None:
        """The reader of calls lets go of what it kept."""
        if (stop := self._pieces(self._inlet.close(), out)) is not None:
            return stop
        if not isinstance(rest := self._inlet.corrected(), Correct):
            return self._pieces(rest, out)
        self.state = State.PAUSED
        return rest

    def _unfinished(self, out: list[bytes]) -> Stop:
        """The attempt is over, by its end mark or with its body, and no frame said why."""
        understood = self._ending.understood(marked=self._done_seen)
        if (stop := self._stop_at_end(out)) is not None:
            return stop
        self.failed = not understood
        ending, failed = self._ending, self._outlet.failed
        self._last(out, ending.complete(out, marked=self._done_seen) if understood else failed(ending.why))
        return Finish()

    def _stop_at_end(self, out: list[bytes]) -> Pause | Retry | Search | None:
        if self._inlet.searched:
            calls, self.state = self._inlet.searches, State.PAUSED
            self._outlet.take_back()
            return Search(calls)
        if self._ending.restarted(out, marked=self._done_seen):
            return self._restarted(out)
        outlet, attempt = self._outlet, self.answer.attempt
        waits = outlet.ending or outlet.rewriting or self._ending.supplied
        if waits and attempt.finish == "length" and self.watch.is_full(self.answer):
            if not outlet.withholding:
                outlet.release_end(out)
            return self._pause("window full", out)
        if attempt.finish == "length" and self.watch.spent(self.answer):
            return self._pause("no room gained", out, last=True)
        if self._ending.lacking and self.watch.suspiciously_empty(self.answer):
            self.state = State.PAUSED
            return Retry(Overflow(None, None, "empty stream"))
        return None

    def _not_resumed(self) -> Commands:
        out: list[bytes] = []
        if (instead := self._inlet.instead) is not None:
            self.state, self._inlet.instead = State.RELAYING, None
            return self._ends(out, self._pieces(instead, out))
        if self._refusal is not None:
            refusal = self._writer.relay(self._refusal, None, role_sent=True)
            return self._finish(out, refusal + self._writer.end())
        if not self.answer.begun:
            return self._failed(_EMPTY, out)
        return self._finish(out, self._outlet.final("length"))

    def _broke_off(self, message: str) -> Commands:
        out = list[bytes]()
        if self.state is State.RELAYING:
            # Nothing is corrected any more, nor gone on with.
            if isinstance(stop := self._pieces(self._inlet.close(), out), Finish):
                return sending(out, stop)
            if not (self._ending.lacking or self.answer.attempt.searching):
                return self._finish(out, self._ending.complete(out, marked=self._done_seen))
        return self._failed(message, out)

    def _failed(self, message: str, out: list[bytes]) -> Commands:
        self.failed = True
        return self._finish(out, self._outlet.failed(message))

    def _finish(self, out: list[bytes], end: bytes) -> Commands:
        self._last(out, end)
        return (*sending(out), Finish())

    def _final(self, finish: str, out: list[bytes]) -> Finish:
        """End the answer in Spillway's own words, though the attempt goes on."""
        self.answer.attempt.finish = finish
        self._last(out, self._outlet.final(finish))
        return Finish()

    def _last(self, out: list[bytes], end: bytes) -> None:
        """Send this, and nothing after it."""
        self.state = State.DONE
        out += (self._closing(out) if end else b"", end)

    def _closing(self, out: list[bytes]) -> bytes:
        """Close a frame that was passed on as the backend tore it. Lines of JSON may not have blank ones between them."""
        return b"\n\n" if self._writer.native and sse.is_open(out) else b""
