"""The state machine of one streamed answer.

The backend's frames are passed on as the bytes they came as. A frame that differs from an earlier one in
nothing but a word is not even parsed; every token is counted all the same, so that a pause falls right at the
pause point, between two chunks of text. After a pause the frames of the next attempt are rewritten to carry
the first one's identity, so the client sees one answer. How the bytes were cut into reads makes no difference.

    RELAYING --ChunkReceived--> RELAYING, or PAUSED at the pause point or on a refused prompt
    RELAYING --UpstreamEnded--> DONE, or PAUSED when the window filled up
    PAUSED   --Resumed--------> RELAYING
    PAUSED   --ResumeFailed---> DONE
    any of them --UpstreamFailed--> DONE, after an error the client can read

A backend that breaks off after the finish reason has broken off nothing: that answer ends in good order.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, assert_never

from proxy.core import sse
from proxy.core.overflow import Overflow, recognise
from proxy.core.stream.answer import Answer, Attempt, Identity, first_choice
from proxy.core.stream.events import (
    ChunkReceived,
    Finish,
    Pause,
    Resumed,
    ResumeFailed,
    Retry,
    Send,
    StreamCommand,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
)
from proxy.core.stream.frames import clean, encoded, is_done, is_open, is_torn, object_of, with_timings
from proxy.core.stream.privileged import smuggles, unprivileged
from proxy.core.stream.rewriting import content_of, part_of, renamed, text_alone, with_content
from proxy.core.stream.seam import EchoFilter, OverlapFilter, Seam, SpacedFilter
from proxy.core.stream.template import Template
from proxy.core.stream.watch import Watch

__all__ = ["LEGAL", "State", "StreamSession", "Watch"]

Commands = tuple[StreamCommand, ...]


class State(Enum):
    """Where a stream stands."""

    RELAYING = "relaying"
    PAUSED = "paused"
    DONE = "done"


LEGAL: dict[tuple[State, type[StreamEvent]], frozenset[State]] = {
    (State.RELAYING, ChunkReceived): frozenset({State.RELAYING, State.PAUSED}),
    (State.RELAYING, UpstreamEnded): frozenset({State.DONE, State.PAUSED}),
    (State.RELAYING, UpstreamFailed): frozenset({State.DONE}),
    (State.PAUSED, Resumed): frozenset({State.RELAYING}),
    (State.PAUSED, ResumeFailed): frozenset({State.DONE}),
    (State.PAUSED, UpstreamFailed): frozenset({State.DONE}),
}
"""Every legal event and the states it may lead to; anything else is a mistake of the driver."""

_EARLY = "The backend ended the answer early."
_EMPTY = "The backend answered nothing; most likely the prompt does not fit its context window."


class StreamSession:
    """One answer. Feed events to `handle` and carry out the commands it returns, in order."""

    def __init__(self, watch: Watch, answer: Answer) -> None:
        self.watch = watch
        self.answer = answer
        self.state = State.RELAYING
        self.renaming = False
        """Whether frames go out under an identity other than the backend's."""
        self.rewriting = False
        """Whether frames are those of a later attempt, and become part of the first one's answer."""
        self._splitter = sse.FrameSplitter()
        self._template = Template()
        self._seam: Seam = EchoFilter("")
        self._held: list[bytes] = []
        """Frames from an end on that may be the window's doing, or lacks what the usage chunk took from it."""
        self._held_said = b""
        """What they say, without that end."""
        self._refusal = b""
        self._done_seen = False
        self._due = False
        """The pause point is reached: the next word is not taken any more."""
        self._gap = ""
        """White space before the word that was not taken: a quoted answer goes on without it."""

    @property
    def resumes(self) -> int:
        """How many times the answer was resumed."""
        return self.answer.resumes

    def adopt(self, identity: Identity) -> None:
        """Put the answer under an identity that a notice has gone out with, after a chunk that said the role."""
        self.answer.identity = identity
        self.answer.role_said = True
        self.renaming = True

    def handle(self, event: StreamEvent) -> Commands:
        """Take in one event.

        Raises:
            ValueError: the event is not legal in this state (a mistake of the driver).
        """
        if (self.state, type(event)) not in LEGAL:
            msg = f"{type(event).__name__} is not legal while {self.state.value}"
            raise ValueError(msg)
        match event:
            case ChunkReceived(data):
                return self._received(data)
            case UpstreamEnded():
                return self._ended()
            case UpstreamFailed(message):
                return self._broke_off(message)
            case Resumed():
                return self._resumed(event)
            case ResumeFailed():
                return self._not_resumed()
        assert_never(event)

    def pause_if_full(self) -> bool:
        """For an answer that came whole: pause it if the window, not a bound, ended it."""
        if self.watch.is_full(self.answer):
            self.state = State.PAUSED
            return True
        return False

    # -- relaying: every method below appends what is to be sent to `out`

    def _received(self, data: bytes) -> Commands:
        block = self._splitter.feed(data)
        if not block:
            return ()
        out: list[bytes] = []
        text = self._template.read(block)
        if text is not None:
            return _commands(out, self._text_frame(block, text, out))
        # Many frames in one read, far from the pause point: at most a token a byte.
        if self.watch.far(self.answer, len(block)) and (texts := self._template.read_all(block)) is not None:
            self.answer.add_all(self._template.name, texts)
            return (Send(block),)
        for frame in sse.frames(block):
            stop = self._frame(frame, out)
            if stop is not None:
                return _commands(out, stop)
        return _commands(out)

    def _frame(self, frame: bytes, out: list[bytes]) -> Pause | Retry | None:
        text = self._template.read(frame)
        if text is not None:
            return self._text_frame(frame, text, out)
        data = sse.data_of(frame)
        chunk = object_of(data)
        if chunk is not None and not smuggles(frame):
            return self._chunk(frame, chunk, out)
        if data is None or not (self.rewriting or chunk is not None or smuggles(frame)):
            (self._held or out).append(frame)
        if is_done(data):
            self._done_seen = True
            self._template.forget()
        return None

    def _text_frame(self, frame: bytes, text: str, out: list[bytes]) -> Pause | None:
        """A frame like one that was parsed before."""
        if self._due and self._template.name == "content" and text[0].isspace():
            return self._pause_before(text, out)
        out.append(self._template.fill(frame, text))
        self.answer.add_plain(self._template.name, text)
        return self._pause_if_due(out)

    def _chunk(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> Pause | Retry | None:
        if self._done_seen:
            # No part of the answer any more.
            (self._held or out).append(b"" if self.rewriting else clean(frame, chunk))
            return None
        if chunk.get("error"):
            return self._error(frame, chunk, out)
        role_said = self.answer.role_said
        if self._due and content_of(chunk)[:1].isspace():
            return self._pause_before(content_of(chunk), out)
        if self.rewriting:
            self._join(frame, chunk, out)
        else:
            self.answer.add(chunk)
            self._relay(frame, chunk, out, role_said=role_said)
        return self._pause_if_due(out)

    def _error(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> Pause | Retry | None:
        overflow = recognise(200, sse.data_of(frame) or b"")
        if overflow is not None and self.answer.begun and self.watch.may_go_on(self.answer):
            return self._pause("window full", out)  # slots that share their memory fill up together
        if overflow is not None and not self.answer.begun:
            self.state = State.PAUSED
            self._refusal = clean(frame, chunk)
            return Retry(overflow)
        self.answer.attempt.errored = True
        self._flush_seam(out)
        (self._held or out).append(self._renamed(frame, chunk, role_said=True))
        return None

    def _relay(self, frame: bytes, chunk: dict[str, Any], out: list[bytes], *, role_said: bool) -> None:
        """A chunk of the first attempt, as it came."""
        if self.watch.strip_usage and chunk.get("usage") and not chunk.get("choices"):
            if self._held:
                self._held[0] = with_timings(self._held[0], frame)
            return
        sent = self._renamed(frame, chunk, role_said=role_said)
        choice = first_choice(chunk)
        cut = choice is not None and choice.get("finish_reason") == "length"
        ends = self.watch.strip_usage and self.answer.attempt.finish is not None
        if self._held or ends or (cut and self.watch.may_be_full(self.answer)):
            self._held.append(sent)
            self._held_said += self._part(chunk, role_said=role_said)
            self._template.forget()
            return
        out.append(sent)
        if (alone := text_alone(chunk, role_said=role_said)) is not None:
            self._template.learn(frame, sent, *alone)

    def _join(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> None:
        """A chunk of a later attempt: only what it says, in one answer with what was said before."""
        role_said, content = self.answer.role_said, content_of(chunk)
        if content:
            seamless = not self._seam.open
            said = self._seam.feed(content)
            chunk = chunk if said == content else with_content(chunk, said)
        else:
            seamless = True
        self.answer.add(chunk)
        part = self._part(chunk, role_said=role_said)
        out.append(part)
        if seamless and (alone := text_alone(chunk, role_said=role_said)) is not None:
            self._template.learn(frame, part, *alone)

    def _renamed(self, frame: bytes, chunk: dict[str, Any], *, role_said: bool) -> bytes:
        identity = self.answer.identity
        if identity is None or not (self.renaming or self.rewriting):
            return clean(frame, chunk)
        return encoded(renamed(unprivileged(chunk), identity, role_said=role_said))

    def _part(self, chunk: dict[str, Any], *, role_said: bool) -> bytes:
        identity = self.answer.identity
        part = None if identity is None else part_of(chunk, identity, role_said=role_said)
        return b"" if part is None else encoded(part)

    # -- pausing

    def _pause_if_due(self, out: list[bytes]) -> Pause | None:
        self._due = self.watch.pause_due(self.answer)
        return self._pause("pause point", out) if self._due and self.watch.overdue(self.answer) else None

    def _pause_before(self, text: str, out: list[bytes]) -> Pause:
        """Pause between two words: the backend will say the second one again."""
        self._gap = text[: len(text) - len(text.lstrip())]
        return self._pause("pause point", out)

    def _pause(self, reason: str, out: list[bytes]) -> Pause:
        self._flush_seam(out)
        self._due = False
        self.state = State.PAUSED
        return Pause(reason)

    def _flush_seam(self, out: list[bytes]) -> None:
        """Text that was held back at the seam turns out to be no repetition."""
        rest, identity = self._seam.flush(), self.answer.identity
        if rest and identity is not None:
            self.answer.add_text(rest)
            out.append(encoded(identity.chunk({"content": rest})))

    def _resumed(self, event: Resumed) -> Commands:
        if self.answer.begun:
            self.rewriting = True
            quote = event.quote
            inner = OverlapFilter(quote, self.answer.text) if quote else EchoFilter(event.echo)
            self._seam = inner if event.exact else SpacedFilter(inner, event.gap or self._gap)
            self._gap = ""
        elif self.answer.identity is not None:
            self.renaming = True  # a first chunk went out before the prompt was refused
        self.answer.attempts.append(Attempt(event.prompt_tokens, bound=event.bound))
        self._splitter = sse.FrameSplitter()
        self._template.forget()
        self._held = []
        self._held_said = self._refusal = b""
        self._done_seen = self._due = False
        self.state = State.RELAYING
        return ()

    # -- ending

    def _ended(self) -> Commands:
        out: list[bytes] = []
        torn = b""
        stop: Pause | Retry | None = None
        for frame in sse.frames(self._splitter.flush()):
            if is_torn(frame):
                torn = frame
            elif stop is None:
                stop = self._frame(frame, out)
        if stop is None:
            stop = self._stop_at_end(out)
        if stop is not None:
            return _commands([*out, b"\n\n"] if is_open(out) else out, stop)
        answered = self.answer.attempt.finish is not None or self._done_seen or self.answer.attempt.errored
        if not answered:
            return self._failed(_EARLY, out)
        return self._complete(out, torn)

    def _stop_at_end(self, out: list[bytes]) -> Pause | Retry | None:
        if (self._held or self.rewriting) and self.answer.attempt.finish == "length":
            if self.watch.is_full(self.answer):
                out.append(self._held_said)
                return self._pause("window full", out)
        elif not self._done_seen and self.watch.suspiciously_empty(self.answer):
            self.state = State.PAUSED
            return Retry(Overflow(None, None, "empty stream"))
        return None

    def _complete(self, out: list[bytes], torn: bytes = b"") -> Commands:
        """The attempt has ended in good order, or with an error that was passed on."""
        if self.rewriting:
            return self._close(out, self._final_frames(self.answer.attempt.finish or "stop"))
        end = b"".join(self._held) + torn
        if self.answer.attempt.errored and not self._done_seen:
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
            missing = b"" if self._done_seen or self.rewriting or attempt.errored else sse.DONE
            return self._complete([], missing)
        return self._failed(message, [])

    def _failed(self, message: str, out: list[bytes]) -> Commands:
        error = {"message": message, "type": "upstream_error", "code": "upstream_failed", "param": None}
        end: list[bytes] = []
        self._flush_seam(end)
        return self._close(out, b"".join(end) + sse.encode({"error": error}) + sse.DONE)

    def _final_frames(self, finish: str) -> bytes:
        identity = self.answer.identity
        if identity is None or self.answer.attempt.errored:
            return sse.DONE
        out: list[bytes] = []
        self._flush_seam(out)
        out.append(sse.encode(identity.chunk({}, finish)))
        if self.watch.show_usage and (usage := self.answer.usage()) is not None:
            out.append(sse.encode({**identity.chunk({}), "choices": [], "usage": usage}))
        return b"".join(out) + sse.DONE

    def _close(self, out: list[bytes], end: bytes) -> Commands:
        self.state = State.DONE
        gap = b"\n\n" if end and is_open(out) else b""
        return (*_commands([*out, gap, end]), Finish())


def _commands(out: list[bytes], stop: StreamCommand | None = None) -> Commands:
    data = b"".join(out)
    if stop is None:
        return (Send(data),) if data else ()
    return (Send(data), stop) if data else (stop,)
