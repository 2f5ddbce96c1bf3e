"""The state machine of one streamed answer.

The backend's frames are passed on as the bytes they came as. A frame that differs from an earlier one in
nothing but a word is not even parsed; every token is counted all the same, so that a pause falls right at the
pause point, between two chunks of text. After a pause the frames of the next attempt are rewritten to carry
the first one's identity, so the client sees one answer. How the bytes were cut into reads makes no difference.

    RELAYING --ChunkReceived--> RELAYING, or PAUSED at the pause point, on a refused prompt, or when a later
                                attempt begins the answer anew; DONE when calls that came whole are enough
    RELAYING --Corrected------> RELAYING, with another attempt
    RELAYING --UpstreamEnded--> DONE, or PAUSED when the window filled up
    PAUSED   --Resumed--------> RELAYING
    PAUSED   --ResumeFailed---> DONE
    any of them --UpstreamFailed--> DONE, after an error the client can read

A backend that breaks off after the finish reason has broken off nothing: that answer ends in good order.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, assert_never

from proxy.answer.answer import Answer, Attempt, Identity
from proxy.answer.events import (
    ChunkReceived,
    Commands,
    Corrected,
    Finish,
    Pause,
    Resumed,
    ResumeFailed,
    Retry,
    Send,
    Stop,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
    sending,
)
from proxy.answer.frames import clean, is_done, is_open, is_torn, object_of
from proxy.answer.outlet import Outlet
from proxy.answer.privileged import smuggles
from proxy.answer.rewriting import calls_of, content_of, thought_of
from proxy.answer.seam import margin
from proxy.answer.watch import Watch
from proxy.backends.overflow import Overflow, recognise
from proxy.backends.refusals import refuses_tools
from proxy.wire import sse

__all__ = ["LEGAL", "State", "StreamSession", "Watch"]


class State(Enum):
    """Where a stream stands."""

    RELAYING = "relaying"
    PAUSED = "paused"
    DONE = "done"


LEGAL: dict[tuple[State, type[StreamEvent]], frozenset[State]] = {
    (State.RELAYING, ChunkReceived): frozenset({State.RELAYING, State.PAUSED, State.DONE}),
    (State.RELAYING, UpstreamEnded): frozenset({State.DONE, State.PAUSED}),
    (State.RELAYING, UpstreamFailed): frozenset({State.DONE}),
    (State.RELAYING, Corrected): frozenset({State.RELAYING}),
    (State.PAUSED, Resumed): frozenset({State.RELAYING}),
    (State.PAUSED, ResumeFailed): frozenset({State.DONE}),
    (State.PAUSED, UpstreamFailed): frozenset({State.DONE}),
}
"""Every legal event and the states it may lead to; anything else is a mistake of the driver."""

_SILENT = 3
"""Attempts that are refused inside the stream before they said a word, until the answer is ended."""
_EARLY = "The backend ended the answer early."
_EMPTY = "The backend answered nothing; most likely the prompt does not fit its context window."


class StreamSession:
    """One answer. Feed events to `handle` and carry out the commands it returns, in order."""

    def __init__(self, watch: Watch, answer: Answer) -> None:
        self.watch = watch
        self.answer = answer
        self.state = State.RELAYING
        self._outlet = Outlet(watch, answer)
        self._splitter = sse.FrameSplitter()
        self._refusal = b""
        self._done_seen = False
        self._due = False
        """The pause point is reached: the next word is not taken any more."""
        self._gap = ""
        """White space before the word that was not taken: a quoted answer goes on without it."""
        self._gap_before = ""
        """The same for the running attempt, in case it adds nothing to the answer."""
        self._said_before = -1
        """Characters of the answer before the running attempt."""

    @property
    def resumes(self) -> int:
        """How many times the answer was resumed."""
        return self.answer.resumes

    def adopt(self, identity: Identity) -> None:
        """Put the answer under an identity that a notice has gone out with, after a chunk that said the role."""
        self.answer.identity = identity
        self.answer.role_said = True
        self._outlet.renaming = True

    def passed(self, data: bytes) -> bool:
        """Take in what goes to the client as it came: one more frame like those before, far from the pause point.

        A short cut for `handle(ChunkReceived(data))`, of which it is the most frequent outcome. False: nothing was
        taken in, and it has to be handled.
        """
        template, answer = self._outlet.template, self.answer
        if not template.verbatim or not self._splitter.empty or not self.watch.far(answer, len(data)):
            return False
        text = template.read(data)
        if text is None or self.state is not State.RELAYING:
            return False
        answer.add_plain(template.name, text)
        return True

    def handle(self, event: StreamEvent) -> Commands:
        """Take in one event.

        Raises:
            ValueError: the event is not legal in this state (a mistake of the driver).
        """
        if (self.state, type(event)) not in LEGAL:
            msg = f"{type(event).__name__} is not legal while {self.state.value}"
            raise ValueError(msg)
        match event:
            case ChunkReceived(data, unseen):
                plain = not (unseen or self.answer.attempt.unseen)
                return self._received(data) if plain else self._received_with(data, unseen)
            case UpstreamEnded():
                return self._ended()
            case UpstreamFailed(message):
                return self._broke_off(message)
            case Resumed():
                return self._resumed(event)
            case Corrected(prompt_tokens, bound):
                out: list[bytes] = []
                self._outlet.release(out)
                self._resumed(Resumed(prompt_tokens, bound))
                self._outlet.begin_paragraph()
                return sending(out)
            case ResumeFailed():
                return self._not_resumed()
        assert_never(event)

    def pause_if_full(self) -> bool:
        """For an answer that came whole: pause it if the window, not a bound, ended it."""
        if self.watch.is_full(self.answer):
            self.state = State.PAUSED
            return True
        return False

    def take_ending(self, ending: bytes) -> None:
        """Take in the finish reason and the usage of frames that are yet to be handled."""
        for frame in sse.frames(ending):
            if (chunk := object_of(sse.data_of(frame))) is not None:
                self.answer.add(chunk)

    # -- relaying: every method below appends what is to be sent to `out`

    def _received(self, data: bytes) -> Commands:
        block = self._splitter.feed(data)
        if not block:
            return ()
        out: list[bytes] = []
        template = self._outlet.template
        text = template.read(block)
        if text is not None:
            return sending(out, self._text_frame(block, text, out))
        # Many frames in one read, far from the pause point: at most a token a byte.
        if self.watch.far(self.answer, len(block)) and (texts := template.read_all(block)) is not None:
            self.answer.add_all(template.name, texts)
            return (Send(block),)
        for frame in sse.frames(block):
            stop = self._frame(frame, out)
            if stop is not None:
                return sending(out, stop)
        return sending(out)

    def _received_with(self, data: bytes, unseen: int) -> Commands:
        """What comes is counted together with what a reader of tool calls still keeps to itself."""
        attempt = self.answer.attempt
        attempt.unseen = unseen
        commands = self._received(data)
        if self.state is State.RELAYING and attempt is self.answer.attempt:
            out: list[bytes] = []
            stop = self._pause_if_due(out)
            commands = (*commands, *sending(out, stop))
        return commands

    def _frame(self, frame: bytes, out: list[bytes]) -> Stop | None:
        text = self._outlet.template.read(frame)
        if text is not None:
            return self._text_frame(frame, text, out)
        data = sse.data_of(frame)
        chunk = object_of(data)
        if chunk is not None and not smuggles(frame):
            return self._chunk(frame, chunk, out)
        if data is None or not (self._outlet.rewriting or chunk is not None or smuggles(frame)):
            self._outlet.other(frame, out)
        if is_done(data):
            self._done_seen = True
            self._outlet.template.forget()
            cut = self.answer.attempt.finish == "length" and self.watch.may_be_full(self.answer)
            if not (cut or self._outlet.rewriting or self._outlet.withholding):
                self._outlet.finish(out)
        return None

    def _text_frame(self, frame: bytes, text: str, out: list[bytes]) -> Stop | None:
        """A frame like one that was parsed before."""
        if self._due and text[0].isspace() and (stop := self._word(text, out)) is not None:
            return stop
        self._outlet.text_frame(frame, text, out)
        return self._pause_if_due(out)

    def _chunk(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> Stop | None:
        if self._done_seen:
            # No part of the answer any more.
            self._outlet.other(b"" if self._outlet.rewriting else clean(frame, chunk), out)
            return None
        if chunk.get("error"):
            return self._error(frame, chunk, out)
        said = content_of(chunk) or thought_of(chunk)
        if self._due and said[:1].isspace() and (stop := self._word(said, out)) is not None:
            return stop
        if calls_of(chunk) and self.watch.endangers(self.answer):
            self._outlet.withhold_call(out)
        if not self._outlet.chunk(frame, chunk, out):
            attempt = self.answer.attempt
            attempt.restarted, attempt.dropped = True, attempt.completion_tokens
            return self._pause("restarted", out)
        if self.answer.attempt.finish not in (None, "length"):
            self._outlet.release(out)
        return self._pause_if_due(out)

    def _error(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> Stop | None:
        data = sse.data_of(frame) or b""
        overflow, attempt = recognise(200, data), self.answer.attempt
        if overflow is not None and self.answer.begun:
            # Slots that share their memory fill up together, and are cleared together.
            attempt.cleared = overflow.shared and attempt.used < self.watch.pause_point
            silent = not attempt.spoke and sum(not a.spoke for a in self.answer.attempts) < _SILENT
            if silent or self.watch.may_go_on(self.answer):
                return self._pause("cleared" if attempt.cleared else "window full", out)
            if not attempt.spoke:
                out.append(self._final_frames("length"))
                self.state = State.DONE
                return Finish()
            attempt.cleared = False
        if not self.answer.begun and (overflow is not None or refuses_tools(200, data)):
            self.state = State.PAUSED
            self._refusal = clean(frame, chunk)
            return Retry(overflow, data)
        attempt.errored = True
        self._outlet.error(frame, chunk, out)
        return None

    # -- pausing

    def _pause_if_due(self, out: list[bytes]) -> Pause | Finish | None:
        if self.watch.called_enough(self.answer):
            # The calls can be made; what a model says after them is most often made up.
            out.append(self._final_frames(self.answer.calls.finish))
            self.state = State.DONE
            return Finish()
        self._due = self.watch.pause_due(self.answer)
        overdue = self._due and self.watch.cancels and self.watch.overdue(self.answer)
        return self._pause("pause point", out) if overdue else None

    def _word(self, text: str, out: list[bytes]) -> Pause | None:
        """A word begins while a pause is due.

        The backend will say it again; or, where it can't be stopped, a bound may cut it, and it is withheld.
        """
        if self.watch.cancels:
            self._gap = "" if self.answer.thinking else margin(text)
            return self._pause("pause point", out)
        if not self.answer.attempt.withheld:
            self._outlet.release(out)
            self._outlet.withhold(out)
        return None

    def _pause(self, reason: str, out: list[bytes]) -> Pause:
        attempt = self.answer.attempt
        attempt.in_vain |= (attempt.withheld or attempt.unseen > 0) and not attempt.cleared
        if word := self._outlet.take_back():
            self._gap = margin(word)
        if not self._outlet.flush(out, left=True):
            attempt.restarted, attempt.dropped = True, attempt.completion_tokens
        if len(self.answer.text) == self._said_before:
            self._gap = self._gap_before  # the word is still to come
        self._due = False
        self.state = State.PAUSED
        return Pause(reason)

    def _resumed(self, event: Resumed) -> Commands:
        self._gap_before = event.gap or self._gap
        self._said_before = len(self.answer.text)
        self._outlet.next_attempt(event, self._gap_before)
        self.answer.attempts.append(Attempt(event.prompt_tokens, bound=event.bound))
        self._splitter = sse.FrameSplitter()
        self._gap, self._refusal = "", b""
        self._done_seen = self._due = False
        self.state = State.RELAYING
        return ()

    # -- ending

    def _ended(self) -> Commands:
        out: list[bytes] = []
        torn = b""
        stop: Stop | None = None
        for frame in sse.frames(self._splitter.flush()):
            if is_torn(frame):
                torn = frame
            elif stop is None:
                stop = self._frame(frame, out)
        if stop is None:
            stop = self._stop_at_end(out)
        if stop is not None:
            return sending([*out, b"\n\n"] if is_open(out) else out, stop)
        answered = self.answer.attempt.finish is not None or self._done_seen or self.answer.attempt.errored
        if not answered:
            return self._failed(_EARLY, out)
        return self._complete(out, torn)

    def _stop_at_end(self, out: list[bytes]) -> Pause | Retry | None:
        outlet = self._outlet
        if (outlet.ending or outlet.rewriting) and self.answer.attempt.finish == "length":
            if self.watch.is_full(self.answer):
                if not outlet.withholding:
                    out.append(outlet.ending_said)
                return self._pause("window full", out)
        elif not self._done_seen and self.watch.suspiciously_empty(self.answer):
            self.state = State.PAUSED
            return Retry(Overflow(None, None, "empty stream"))
        return None

    def _complete(self, out: list[bytes], torn: bytes = b"") -> Commands:
        """The attempt has ended in good order, or with an error that was passed on."""
        attempt, outlet = self.answer.attempt, self._outlet
        if attempt.withheld and attempt.finish == "length" and self.watch.tokens_left(self.answer) != 0:
            outlet.take_back()  # half a call, and no more room for a whole one
            return self._close(out, self._final_frames("length"))
        outlet.release(out)
        if self.watch.cut_after_calls(self.answer):
            return self._close(out, self._final_frames(self.answer.calls.finish))
        if outlet.rewriting:
            return self._close(out, self._final_frames(attempt.finish or "stop"))
        end = b"".join(outlet.ending) + torn
        if attempt.errored and not self._done_seen:
            end += sse.DONE
        return self._close(out, end)

    def _not_resumed(self) -> Commands:
        if self._refusal:
            return self._close([], self._refusal + sse.DONE)
        if not self.answer.begun:
            return self._failed(_EMPTY, [])
        return self._close([], self._final_frames("length"))

    def _broke_off(self, message: str) -> Commands:
        attempt = self.answer.attempt
        if self.state is State.RELAYING and (attempt.finish or self._done_seen or attempt.errored):
            missing = b"" if self._done_seen or self._outlet.rewriting or attempt.errored else sse.DONE
            return self._complete([], missing)
        return self._failed(message, [])

    def _failed(self, message: str, out: list[bytes]) -> Commands:
        error = {"message": message, "type": "upstream_error", "code": "upstream_failed", "param": None}
        end: list[bytes] = []
        self._outlet.settle(end)
        return self._close(out, b"".join(end) + sse.encode({"error": error}) + sse.DONE)

    def _final_frames(self, finish: str) -> bytes:
        identity = self.answer.identity
        if identity is None or self.answer.attempt.errored:
            return sse.DONE
        out: list[bytes] = []
        self._outlet.flush(out)
        out.append(sse.encode(identity.chunk({}, finish)))
        if self.watch.show_usage:
            out.append(sse.encode({**identity.chunk({}), "choices": [], "usage": self.answer.usage()}))
        return b"".join(out) + sse.DONE

    def _close(self, out: list[bytes], end: bytes) -> Commands:
        self.state = State.DONE
        gap = b"\n\n" if end and is_open(out) else b""
        return (*sending([*out, gap, end]), Finish())
