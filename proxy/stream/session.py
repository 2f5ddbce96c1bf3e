"""The state machine of one streamed answer.

The backend's frames are passed on byte for byte. A frame that differs from an earlier one only in its text is not even parsed,
but every token is counted, so that a pause falls right at the pause point, between two chunks of text. After a pause, the
frames of the next attempt are rewritten to carry the first one's identity, so the client sees one answer. How the bytes were
split into reads makes no difference to the output. `LEGAL` lists all states and events.

A finish reason ends an attempt whatever follows it, even a broken connection. Without one, an end mark is trusted, because a
server that breaks down does not write it. A body that merely ends is not, unless the window is full.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from proxy.backends.overflow import Overflow, recognise
from proxy.backends.profile import TEMPLATE_RULES
from proxy.backends.refusals import refused_feature
from proxy.core import sse
from proxy.core.dialect import Writer
from proxy.core.errors import STREAM_FAILED, UpstreamUnavailable
from proxy.core.piece import Identity, Piece
from proxy.dialects.chat.answers import read_frame
from proxy.stream import events
from proxy.stream.answer import Answer, Attempt
from proxy.stream.events import State
from proxy.stream.inlet import Inlet, MakeReader
from proxy.stream.outlet import Outlet
from proxy.stream.seam import margin
from proxy.stream.watch import CHECKED, UNBOUND, Watch

_EMPTY = "The backend answered nothing; most likely the prompt does not fit its context window."
_EARLY = "The backend ended the answer early."
_NOTHING = "The backend ended its answer without having said anything."
_SWALLOWED = "The backend generated an answer and sent nothing of it; most likely it could not read a tool call. Its log may say more."
_QUOTED = 200
"""Characters of a backend's text in an error."""


class StreamSession:
    """One answer. Feed events to `handle`: it returns what to send to the client, and what to do then."""

    def __init__(self, watch: Watch, answer: Answer, writer: Writer, calls: MakeReader = lambda: None) -> None:
        """Begin an empty answer; `calls` makes a reader of calls written as text, or None."""
        self.watch = watch
        self.answer = answer
        self.state = State.RELAYING
        self._inlet = Inlet(watch, answer, calls)
        self._outlet = Outlet(watch, answer, writer)
        self._refusal: Piece | None = None
        """Error with which the backend refused the prompt, for the client if it can't be sent again."""
        self._uncorrected: Sequence[Piece] | None = None
        """Pieces to send if the faulty calls in them are not corrected."""
        self.failed = False
        """Whether the answer ended in an error that Spillway wrote."""
        self._thinking_bound, self._conclusions = watch.thinking_bound, watch.conclusions
        """Completion tokens at which the model is made to answer, and how many more times it may be."""
        self._next_check = CHECKED
        """Characters of the answer from which it is checked again whether it repeats itself."""
        self._gap = ""
        """White space before the word at which the latest attempt was paused."""
        self._stray = ""
        """Latest comment among the frames: it may say why the backend ended the answer."""
        self._cut = ""
        """Word that was taken back for a pause, and that the client has not seen."""
        self._size_before = -1
        """Characters of the answer when the running attempt began."""

    def adopt(self, identity: Identity) -> None:
        """Use the identity under which a notice was sent before the answer, after a chunk with the role."""
        self.answer.identity = identity
        self._outlet.role_sent = self._outlet.renaming = True

    def handle(self, event: events.StreamEvent) -> tuple[bytes, events.Stop | None]:
        """Take in one event, and return bytes for the client and what to do next, or None to go on reading.

        Raises:
            ValueError: the event is not legal in this state (a mistake of the driver).
        """
        if (self.state, type(event)) not in events.LEGAL:
            raise ValueError(f"{type(event).__name__} is not legal while {self.state.value}")
        stop: events.Stop | None = None
        match event:
            case events.ChunkReceived(data):
                stop = self._frames(sse.frames(self._inlet.splitter.feed(data)))
            case events.AnswerReceived(pieces):
                stop = self._body_received(pieces)
            case events.UpstreamEnded():
                stop = self._frames(self._inlet.rest()) or self._attempt_ended(None) or self._finish()
            case events.CutOff(message):
                stop = self._cut_off(message)
            case events.Reopened():
                self._reopened(event)
            case events.ResumeFailed():
                stop = self._not_resumed()
            case _:
                assert_never(event)
        if stop is not None and self.state is State.PAUSED:
            self._outlet.close_frame()
        data = b"".join(self._outlet.out)
        self._outlet.out.clear()
        return data, stop

    # -- relaying: output collects in the outlet

    def _frames(self, frames: Iterable[bytes]) -> events.Stop | None:
        for frame in frames:
            if self._outlet.plain(frame, self._inlet.calls):
                stop = None if self._thinking_bound == UNBOUND else self._conclude_if_due()
            else:
                self._outlet.template.known = False
                stop = self._pieces(self._inlet.take(read_frame(frame)), running=True) or self._pause_if_due()
            if stop is not None:
                return stop
        size = self.answer.size
        if self.state is State.ENDED or size < self._next_check:
            return None
        self._next_check = size + CHECKED
        if not self.watch.loops(self.answer):
            return None
        return self._conclude(ended=True) if self.answer.in_thought else self._pause("the answer repeats itself")

    def _body_received(self, pieces: Sequence[Piece]) -> events.Stop | None:
        """Take in an answer that is not paused before its end: its own usage decides whether it is resumed."""
        attempt = self.answer.attempt
        counts = next((piece for piece in pieces if piece.usage and not piece.choice), Piece())
        attempt.prompt_tokens = counts.prompt_tokens or attempt.prompt_tokens
        for piece in pieces:
            if piece.done:
                self.answer.report(counts)  # before a faulty call can end the attempt: the counts are valid anyway
            if (stop := self._pieces(self._inlet.take(piece))) is not None:
                return stop
        return self._attempt_ended(None) or self._finish()

    def _pieces(self, pieces: Sequence[Piece], *, running: bool = False) -> events.Stop | None:
        return next((stop for piece in pieces if (stop := self._piece(piece, running=running)) is not None), None)

    def _piece(self, piece: Piece, *, running: bool) -> events.Stop | None:
        """Take in a piece; `running`: the backend is still generating, so the attempt can be paused before it."""
        outlet, attempt = self._outlet, self.answer.attempts[-1]
        if piece.form is None or self.state is State.ENDED or attempt.errored:
            return self._outside_answer(piece)
        if piece.error is not None:
            return self._error(piece)
        if running and (stop := self._next_word(piece.text or piece.thought)):
            return stop
        if piece.calls and self.watch.endangers(self.answer):
            outlet.withhold(call=True)
        if piece.finish not in (None, "length") and not attempt.searching and self.answer.mark is not None:
            outlet.release()
        return None if outlet.piece(piece) else self._pause("restarted")

    def _outside_answer(self, piece: Piece) -> events.Stop | None:
        """Take in a piece outside the answer: an end mark, a comment, or anything after an error."""
        if piece.done:
            return self._attempt_ended(piece)
        if piece.comment.strip(": "):
            self._stray = piece.comment[:_QUOTED]
        if piece.form is None and self.state is not State.ENDED and (piece.aside or not self._outlet.rewriting):
            self._outlet.aside(piece)
        return None

    def _error(self, piece: Piece) -> events.Stop | None:
        data = sse.data_of(piece.frame) or b""
        overflow, attempt = recognise(200, data), self.answer.attempt
        if overflow is not None and self.answer.has_output:
            # llama.cpp's slots may share their memory: if it fills up, all are cleared, although this one had room left.
            attempt.cleared = overflow.shared and attempt.used < self.watch.pause_point
            if self.watch.may_retry(self.answer) or self.watch.may_resume(self.answer):
                return self._pause("cleared" if attempt.cleared else "window full")
            if not attempt.spoke:
                attempt.finish = "length"
                return self._end("length")
            attempt.cleared = False
        refused = overflow is not None or refused_feature(200, data, ("tools", *TEMPLATE_RULES))
        if refused and not self.answer.has_output:
            self.state, self._refusal = State.PAUSED, piece
            return events.Retry(overflow, data)
        attempt.errored, self.answer.error = True, piece.error
        self._outlet.settle()
        self._outlet.aside(piece)
        return None

    # -- pausing

    def _pause_if_due(self) -> events.Stop | None:
        attempt, watch = self.answer.attempts[-1], self.watch
        if self.state is State.ENDED or attempt.errored:
            return None
        if attempt.finish is None and watch.spent(self.answer):
            return self._pause("no room gained")
        if self._thinking_bound < UNBOUND and (stop := self._conclude_if_due()) is not None:
            return stop
        due = watch.pause_due(self.answer)
        # The pause waits for the end of a word: a model that is asked to go on inside one can't finish it, because the rest
        # has other tokens. How long it may wait is bounded (`overdue`), since code and Chinese may have no space for pages.
        self.state = State.PAUSING if due else State.RELAYING
        return self._pause("pause point") if due and watch.cancels and watch.overdue(self.answer) else None

    def _next_word(self, text: str) -> events.Pause | None:
        """If a word begins while a pause is due, pause before it: the next attempt will write it again.

        If the attempt can't be left, withhold everything after this point instead: its bound may cut a word.
        """
        if self.watch.unknown:
            self._outlet.hold_word(text)
        if self.state is not State.PAUSING or not text[:1].isspace():
            return None
        if self.watch.cancels:
            return self._pause("pause point", gap="" if self.answer.thinking else margin(text))
        if not self.answer.attempt.withheld:
            self._outlet.withhold()
        return None

    def _pause(self, reason: events.PauseReason, *, gap: str = "") -> events.Pause:
        """Pause the attempt, after a word and before `gap`, and take back what the client can't be given yet."""
        answer, attempt = self.answer, self.answer.attempt
        if word := self._outlet.take_back():
            gap, self._cut = margin(word), "" if attempt.withheld else word
        if not self._outlet.flush() or reason == "restarted":
            attempt.restart()
        attempt.restarted |= self.watch.only_copied(attempt)
        last = reason in events.LAST or (attempt.restarted and not self.watch.may_resume(answer))
        if answer.size != self._size_before:  # or else the word at the previous pause is still to come
            if self.watch.hidden and not (attempt.calling or last or gap):
                text = answer.text
                gap = answer.cut_word()
                self._cut = text[len(answer.text) :]
            self._gap = gap
        self.state = State.PAUSED
        return events.Pause(reason, last)

    def _conclude_if_due(self) -> events.Stop | None:
        """Make the model answer if it has used up its thinking tokens and is still thinking. Once it answers, it is not bounded."""
        answer, attempt = self.answer, self.answer.attempts[-1]
        if answer.completion_tokens < self._thinking_bound or attempt.finish or attempt.unseen:
            return None
        if answer.in_thought:
            return self._conclude(ended=False)
        self._thinking_bound = UNBOUND  # or every later frame would read the whole text again to see that it answers
        return None

    def _conclude(self, *, ended: bool) -> events.Stop:
        """Have the model answer without further thinking, or end the answer if it was asked to before and still thinks."""
        self._outlet.close_thought(ended=ended)
        if not self._conclusions:
            return self._end("length")
        self._conclusions = 0 if ended else self._conclusions - 1
        self._thinking_bound += self.answer.completion_tokens
        self.state = State.PAUSED
        return events.Conclude(ended)

    def _reopened(self, event: events.Reopened) -> None:
        if event.corrects:
            self._outlet.release()
            self._gap = ""
        self._size_before, self.watch = self.answer.size, event.watch or self.watch
        self._outlet.next_attempt(event, self._gap, self.watch)
        self.answer.begin(Attempt(event.prompt_tokens, bound=event.bound))
        self._inlet.next_attempt(self.watch)
        self._refusal, self._cut = None, ""
        self.state = State.RELAYING

    # -- ending

    def _attempt_ended(self, mark: Piece | None) -> events.Stop | None:
        """End the attempt, by its end mark or with its body, or have another one made."""
        if self.state is State.ENDED:
            return None
        if (stop := self._close()) is not None:
            return stop
        self.state = State.ENDED
        marked, supplied = mark is not None, self._unexplained
        if supplied:
            self.answer.attempt.finish = self.watch.inferred_finish(self.answer, marked=marked)
            supplied = not self._unexplained
        if (stop := self._next_attempt_needed(marked=marked, supplied=supplied)) is not None:
            return stop
        if self._conclusions and self.watch.ended_in_thought(self.answer):
            return self._conclude(ended=True)
        if self._unexplained or (self.watch.tools and self.watch.swallowed(self.answer)):
            message = (_EARLY if self.answer.has_output else _NOTHING) if self._unexplained else _SWALLOWED
            return self._fail(f"{message} Its last words: {self._stray}" if self._stray else message)
        return self._complete(mark, supplied=supplied)

    def _close(self) -> events.Stop | None:
        """Take in the pieces that the inlet still holds, and ask for a correction if a call in them is faulty."""
        if (stop := self._pieces(self._inlet.close())) is not None:
            return stop
        wrong, pieces = self._inlet.correction()
        if wrong is None:
            return self._pieces(pieces)
        self.state, self._uncorrected = State.PAUSED, pieces
        return wrong

    @property
    def _unexplained(self) -> bool:
        """Return whether the running attempt has neither a finish reason nor an error so far."""
        return self.answer.attempt.finish is None and not self.answer.attempt.errored

    def _next_attempt_needed(self, *, marked: bool, supplied: bool) -> events.Stop | None:
        """Return what another attempt needs, now that this one has ended, or None if the answer is complete."""
        answer, attempt, outlet = self.answer, self.answer.attempt, self._outlet
        if attempt.searching and attempt.finish != "length":
            searches = tuple([call for call in answer.calls if self.watch.passed(call) is None])
            self.state = State.PAUSED
            outlet.take_back()
            return events.Search(searches)
        if outlet.rewriting and not attempt.errored:
            ended = attempt.finish == "stop" or (marked and attempt.finish is None)
            if not outlet.flush() or (outlet.more_expected and ended and not attempt.spoke):
                return self._pause("restarted")
        waits = outlet.held is not None or outlet.rewriting or supplied
        if attempt.finish == "length" and waits and self.watch.is_full(answer):
            if answer.mark is None:
                outlet.drop_end()
            return self._pause("window full")
        if attempt.finish == "length" and self.watch.spent(answer):
            return self._pause("no room gained")
        if self.watch.suspiciously_empty(answer):
            self.state = State.PAUSED
            return events.Retry(Overflow(None, None))
        return None

    def _complete(self, mark: Piece | None = None, *, supplied: bool = False) -> events.Stop | None:
        """Send the rest of the last attempt; returns None if all is sent but the body has not ended yet."""
        attempt, outlet, watch = self.answer.attempt, self._outlet, self.watch
        bounded = watch.remaining_tokens(self.answer) == 0 and not attempt.searching
        if attempt.withheld and attempt.finish == "length" and not bounded:
            outlet.take_back()  # half a call, and there is no room for the rest
            return self._end("length")
        finish, ends_in_calls = attempt.finish or "stop", watch.cut_after_calls(self.answer)
        if ends_in_calls:
            finish = "tool_calls"
            outlet.drop_end()
        outlet.release()
        if ends_in_calls or outlet.rewriting or supplied:
            return self._end(finish)
        if mark is None:
            return self._end()
        outlet.aside(mark)
        return None

    def _not_resumed(self) -> events.Stop | None:
        if (pieces := self._uncorrected) is not None:
            self.state, self._uncorrected = State.RELAYING, None
            return self._pieces(pieces) or self._attempt_ended(None) or self._finish()
        if self._refusal is not None:
            self._outlet.refuse(self._refusal)
            return self._finish()
        if not self.answer.has_output:
            return self._fail(_EMPTY if self.watch.may_not_fit(self.answer) else _NOTHING)
        if not self.answer.attempt.restarted:  # nothing of a second version goes to the client
            self._outlet.give_back(self._cut)
        return self._end((self.answer.only_thought and self.answer.attempt.finish) or "length")

    def _cut_off(self, message: str) -> events.Stop | None:
        """End the answer: the connection broke or (without a `message`) it is to end here. Nothing is corrected or resumed."""
        attempt, outlet = self.answer.attempt, self._outlet
        if self.state is State.ENDED:
            return self._finish()
        if self.state is not State.PAUSED:
            if isinstance(stop := self._pieces(self._inlet.close()), events.Finish):
                return stop
            if not (self._unexplained or attempt.searching):
                return self._complete()
        if message:
            return self._fail(message)
        outlet.settle()  # with the finish reason `length`, no client runs a call that is only half there
        return self._end("length" if attempt.calling else "stop")

    def _fail(self, message: str) -> events.Finish:
        self.failed = True
        if self.answer.is_empty:
            self.answer.error = UpstreamUnavailable(message, code=STREAM_FAILED).body()["error"]
            self._outlet.drop_end()
        self._outlet.fail(message)
        return self._finish()

    def _end(self, finish: str = "") -> events.Finish:
        self._outlet.end(finish)
        return self._finish()

    def _finish(self) -> events.Finish:
        self.state = State.DONE
        return events.Finish()
