"""The state machine of one streamed answer.

The backend's frames are passed on as the bytes they came as. A frame that differs from an earlier one in nothing but a word is
not even parsed; every token is counted all the same, so that a pause falls right at the pause point, between two chunks of text.
After a pause the frames of the next attempt are rewritten to carry the first one's identity, so the client sees one answer. How
the bytes were cut into reads makes no difference to what goes out. `LEGAL` lists all states and events.

A finish reason is the end of an attempt whatever follows it, even a broken connection. Without one an end mark is believed,
because a server that breaks down does not write it; a body that just ends is not, unless the window is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from proxy.backends.refusals import Overflow, recognise, refuses_tools
from proxy.core import sse
from proxy.core.dialect import Writer
from proxy.core.piece import Identity, Piece
from proxy.stream.answer import Answer, Attempt
from proxy.stream.events import (
    LEGAL,
    AnswerReceived,
    ChunkReceived,
    Commands,
    EndedHere,
    Finish,
    Pause,
    Reopened,
    ResumeFailed,
    Retry,
    Search,
    Send,
    State,
    Stop,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
)
from proxy.stream.inlet import Inlet
from proxy.stream.outlet import Outlet
from proxy.stream.seam import margin
from proxy.stream.watch import Watch

if TYPE_CHECKING:
    from proxy.emulation.reader import WrittenCallReader

__all__ = ["LEGAL", "State", "StreamSession", "Watch"]

_EMPTY = "The backend answered nothing; most likely the prompt does not fit its context window."
_EARLY = "The backend ended the answer early."
_NOTHING = "The backend ended its answer without having said anything."


class StreamSession:
    """One answer. Feed events to `handle` and carry out the commands it returns, in order."""

    def __init__(
        self, watch: Watch, answer: Answer, writer: Writer, calls: Callable[[], WrittenCallReader | None] = lambda: None
    ) -> None:
        """`calls` makes a reader of calls that are written as text, for the next attempt; None: there are none."""
        self.watch = watch
        self.answer = answer
        self.state = State.RELAYING
        self._writer = writer
        self._inlet = Inlet(watch, answer, calls)
        self._outlet = Outlet(watch, answer, writer)
        self._refusal: Piece | None = None
        """The backend's, for a client whose prompt can't be sent again."""
        self._uncorrected: Sequence[Piece] | None = None
        """What to send if nobody corrects the calls in it."""
        self.failed = False
        """Whether it ended in an error that Spillway wrote."""
        self._over = False
        """Whether the attempt has ended; its body may still be open."""
        self._due = False
        """The pause point is reached: the next word is not taken any more."""
        self._gap = self._gap_before = ""
        """White space before the word that was not taken by this attempt, and the one before it."""
        self._size_before = -1
        """Characters of the answer before the running attempt."""

    @property
    def delivered(self) -> bool:
        """Return whether the client has got all of the answer; the backend may not have ended the body yet."""
        return self.state is State.DONE or self._over

    def adopt(self, identity: Identity) -> None:
        """Put the answer under an identity that a notice has gone out with, after a chunk with the role."""
        self.answer.identity = identity
        self._outlet.role_sent = self._outlet.renaming = True

    def handle(self, event: StreamEvent) -> Commands:
        """Take in one event.

        Raises:
            ValueError: the event is not legal in this state (a mistake of the driver).
        """
        if (self.state, type(event)) not in LEGAL:
            raise ValueError(f"{type(event).__name__} is not legal while {self.state.value}")
        out: list[bytes] = []
        stop: Stop | None = None
        match event:
            case ChunkReceived(data):
                stop = self._frames(sse.frames(self._inlet.splitter.feed(data)), out)
            case AnswerReceived(pieces):
                stop = self._body_received(pieces, out)
            case UpstreamEnded():
                stop = self._frames(self._inlet.rest(), out) or self._body_ended(out)
            case UpstreamFailed(message):
                stop = self._cut_off(message, out)
            case EndedHere():
                stop = self._cut_off("", out)
            case Reopened():
                self._reopened(event, out)
            case ResumeFailed():
                stop = self._not_resumed(out)
            case _:
                assert_never(event)
        if stop is not None and self.state is State.PAUSED:
            out.append(self._closing(out))
        data = b"".join(out)
        sends = (Send(data),) if data else ()
        return sends if stop is None else (*sends, stop)

    # -- relaying: every method below appends what is to be sent to `out`

    def _frames(self, frames: Iterable[bytes], out: list[bytes]) -> Stop | None:
        for frame in frames:
            if self._outlet.plain(frame, out, self._inlet.calls):
                continue
            self._outlet.template.known = False
            stop = self._pieces(self._inlet.read(frame), out) or self._pause_if_due(out)
            if stop is not None:
                return stop
        return None

    def _body_received(self, pieces: Sequence[Piece], out: list[bytes]) -> Stop | None:
        """Take in an answer that is not paused before its end: what it counts decides whether it is resumed."""
        attempt = self.answer.attempt
        counts = next((piece for piece in pieces if piece.trailer), Piece())
        attempt.prompt_tokens = counts.prompt_tokens or attempt.prompt_tokens
        for piece in pieces:
            if piece.done:
                self.answer.report(counts)  # they hold, though nothing behind a wrong call is sent
            if (stop := self._pieces(self._inlet.take(piece), out, complete=True)) is not None:
                return stop
        return self._body_ended(out)

    def _pieces(self, pieces: Sequence[Piece], out: list[bytes], *, complete: bool = False) -> Stop | None:
        """Take in pieces; `complete`: of an answer that came in one body, and is not paused."""
        for piece in pieces:
            if (stop := self._piece(piece, out, complete=complete)) is not None:
                return stop
        return None

    def _piece(self, piece: Piece, out: list[bytes], *, complete: bool) -> Stop | None:
        outlet, attempt = self._outlet, self.answer.attempts[-1]
        if piece.form is None or self._over or attempt.errored:
            return self._outside_answer(piece, out)
        if piece.error is not None:
            return self._error(piece, out)
        if not complete and (stop := self._next_word(piece.text or piece.thought, out)):
            return stop
        piece = self._inlet.without_searches(piece)
        if piece.calls and self.watch.endangers(self.answer):
            outlet.withhold(out, call=True)
        if piece.finish not in (None, "length") and not attempt.searching and self.answer.marked:
            outlet.release(out)
        if outlet.piece(piece, out):
            return None
        attempt.restart()
        return self._pause("restarted", out)

    def _outside_answer(self, piece: Piece, out: list[bytes]) -> Stop | None:
        """Take in what is no part of the answer: its end mark, a comment, or what comes behind an error."""
        if piece.done:
            return self._attempt_ended(out, piece)
        if piece.form is None and not self._over and (piece.aside or not self._outlet.rewriting):
            self._outlet.aside(piece, out)
        return None

    def _error(self, piece: Piece, out: list[bytes]) -> Stop | None:
        data = sse.data_of(piece.frame) or b""
        overflow, attempt = recognise(200, data), self.answer.attempt
        if overflow is not None and self.answer.has_output:
            # Slots that share their memory fill up together, and are cleared together.
            attempt.cleared = overflow.shared and attempt.used < self.watch.pause_point
            if self.watch.may_retry(self.answer) or self.watch.may_resume(self.answer):
                return self._pause("cleared" if attempt.cleared else "window full", out)
            if not attempt.spoke:
                attempt.finish = "length"
                return self._finish(self._outlet.final("length"), out)
            attempt.cleared = False
        if not self.answer.has_output and (overflow is not None or refuses_tools(200, data)):
            self.state, self._refusal = State.PAUSED, piece
            return Retry(overflow, data)
        attempt.errored = True
        self._outlet.settle(out)
        self._outlet.aside(piece, out)
        return None

    # -- pausing

    def _pause_if_due(self, out: list[bytes]) -> Stop | None:
        attempt, watch = self.answer.attempts[-1], self.watch
        if self._over or attempt.errored:
            return None
        if attempt.finish is None and watch.spent(self.answer):
            return self._pause("no room gained", out, last=True)
        self._due = watch.pause_due(self.answer)
        overdue = self._due and watch.cancels and watch.overdue(self.answer)
        return self._pause("pause point", out) if overdue else None

    def _next_word(self, text: str, out: list[bytes]) -> Pause | None:
        """If a word begins while a pause is due, the backend will repeat it; or withhold it: a bound may cut it."""
        if self.watch.unknown:
            self._outlet.hold_word(text, out)
        if not self._due or not text[:1].isspace():
            return None
        if self.watch.cancels:
            self._gap = "" if self.answer.thinking else margin(text)
            return self._pause("pause point", out)
        if not self.answer.attempt.withheld:
            self._outlet.withhold(out)
        return None

    def _pause(self, reason: str, out: list[bytes], *, last: bool = False) -> Pause:
        answer, attempt = self.answer, self.answer.attempt
        attempt.in_vain |= (attempt.withheld or attempt.unseen > 0) and not attempt.cleared
        if word := self._outlet.take_back():
            self._gap = margin(word)
        if not self._outlet.flush(out):
            attempt.restart()
        attempt.restarted |= self.watch.only_copied(attempt)
        last |= attempt.restarted and not self.watch.may_resume(answer)
        if answer.size == self._size_before:
            self._gap = self._gap_before  # the word is still to come
        elif self.watch.hidden and not (attempt.calling or last or self._gap):
            self._gap = answer.cut_word()
        self._due = False
        self.state = State.PAUSED
        return Pause(reason, last)

    def _reopened(self, event: Reopened, out: list[bytes]) -> None:
        if event.corrects:
            self._outlet.release(out)
        if event.room is not None:
            self.watch.update(event.room)
        self._gap_before, self._gap, self._size_before = self._gap, "", self.answer.size
        self._outlet.next_attempt(event, self._gap_before)
        self.answer.attempts.append(Attempt(event.prompt_tokens, bound=event.bound))
        self._inlet.next_attempt()
        self._refusal, self._over, self._due = None, False, False
        self.state = State.RELAYING

    # -- ending

    def _body_ended(self, out: list[bytes]) -> Stop | None:
        """The backend ended the body in good order."""
        return self._attempt_ended(out, None) or self._finish(b"", out)

    def _attempt_ended(self, out: list[bytes], mark: Piece | None) -> Stop | None:
        """End the attempt, by its end mark or with its body, or have another one made."""
        if self._over:
            return None
        if (stop := self._close(out)) is not None:
            return stop
        self._over = True
        supplied = self._unexplained and self._supply_finish(marked=mark is not None)
        if (stop := self._next_attempt_needed(out, marked=mark is not None, supplied=supplied)) is not None:
            return stop
        if self._unexplained:
            return self._fail(_EARLY if self.answer.has_output else _NOTHING, out)
        return self._complete(out, mark, supplied=supplied)

    def _close(self, out: list[bytes]) -> Stop | None:
        """The reader of calls lets go of what it held."""
        if (stop := self._pieces(self._inlet.close(), out)) is not None:
            return stop
        wrong, pieces = self._inlet.correction()
        if wrong is None:
            return self._pieces(pieces, out)
        self.state, self._uncorrected = State.PAUSED, pieces
        return wrong

    @property
    def _unexplained(self) -> bool:
        """Return whether neither a finish reason nor an error has explained yet why the running attempt ends."""
        return self.answer.attempt.finish is None and not self.answer.attempt.errored

    def _supply_finish(self, *, marked: bool) -> bool:
        """Supply the finish reason that the backend left out, if it can be told; `marked`: an end mark came."""
        answer, attempt = self.answer, self.answer.attempt
        if self.watch.outgrown(answer):
            attempt.finish = "length"
        elif marked and attempt.spoke and (not attempt.calling or answer.calls_are_complete):
            attempt.finish = "tool_calls" if attempt.calling else "stop"
        return attempt.finish is not None

    def _next_attempt_needed(self, out: list[bytes], *, marked: bool, supplied: bool) -> Stop | None:
        """Return what has to be done before an attempt that has ended can be gone on with; None: nothing goes on."""
        answer, attempt, outlet = self.answer, self.answer.attempt, self._outlet
        if (searches := self._inlet.searches) is not None:
            self.state = State.PAUSED
            outlet.take_back()
            return Search(searches)
        if outlet.rewriting and not attempt.errored:
            ended = attempt.finish == "stop" or (marked and attempt.finish is None)
            if not outlet.flush(out) or (outlet.more_expected and ended and not attempt.spoke):
                attempt.restart()
                return self._pause("restarted", out)
        waits = outlet.holding or outlet.rewriting or supplied
        if attempt.finish == "length" and waits and self.watch.is_full(answer):
            if not answer.marked:
                outlet.drop_end(out)
            return self._pause("window full", out)
        if attempt.finish == "length" and self.watch.spent(answer):
            return self._pause("no room gained", out, last=True)
        if self.watch.suspiciously_empty(answer):
            self.state = State.PAUSED
            return Retry(Overflow(None, None, "empty stream"))
        return None

    def _complete(self, out: list[bytes], mark: Piece | None = None, *, supplied: bool = False) -> Stop | None:
        """Send what is left of an attempt that nothing comes after; None: all is sent, and its body has not ended yet."""
        attempt, outlet, watch = self.answer.attempt, self._outlet, self.watch
        bounded = watch.remaining_tokens(self.answer) == 0 and not attempt.searching
        if attempt.withheld and attempt.finish == "length" and not bounded:
            outlet.take_back()  # half a call, and no more room for all of it
            return self._finish(outlet.final("length"), out)
        finish, ends_in_calls = attempt.finish or "stop", watch.cut_after_calls(self.answer)
        if ends_in_calls:
            finish = "tool_calls"
            outlet.drop_end(out)
        outlet.release(out)
        if ends_in_calls or outlet.rewriting or supplied:
            return self._finish(outlet.final(finish), out)
        if mark is None:
            return self._finish(outlet.counted() + self._writer.end(), out)
        outlet.aside(mark, out)
        return None

    def _not_resumed(self, out: list[bytes]) -> Stop | None:
        if (pieces := self._uncorrected) is not None:
            self.state, self._uncorrected = State.RELAYING, None
            return self._pieces(pieces, out) or self._body_ended(out)
        if self._refusal is not None:
            return self._finish(self._writer.relay(self._refusal, None, role_sent=True) + self._writer.end(), out)
        if not self.answer.has_output:
            return self._fail(_EMPTY, out)
        return self._finish(self._outlet.final("length"), out)

    def _cut_off(self, message: str, out: list[bytes]) -> Stop | None:
        """The connection broke, or nobody wants more (no `message`): nothing is corrected any more, nor resumed."""
        attempt, outlet = self.answer.attempt, self._outlet
        if self.state is State.RELAYING:
            if self._over:
                return self._finish(b"", out)
            if isinstance(stop := self._pieces(self._inlet.close(), out), Finish):
                return stop
            if not (self._unexplained or attempt.searching):
                return self._complete(out)
        if message:
            return self._fail(message, out)
        outlet.settle(out)  # of a call that was begun nobody takes half for all
        return self._finish(outlet.final("length" if attempt.calling else "stop"), out)

    def _fail(self, message: str, out: list[bytes]) -> Finish:
        self.failed = True
        return self._finish(self._outlet.failed(message), out)

    def _finish(self, end: bytes, out: list[bytes]) -> Finish:
        """Send this, and nothing after it."""
        self.state = State.DONE
        out += (self._closing(out) if end else b"", end)
        return Finish()

    def _closing(self, out: list[bytes]) -> bytes:
        """Close a frame that was passed on as the backend tore it. Lines of JSON may not have blank ones between them."""
        return b"\n\n" if self._writer.native and sse.is_open(out) else b""
