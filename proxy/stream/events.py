"""Events of a stream, the states that they lead to, and the actions that the session asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from proxy.backends.overflow import Overflow
from proxy.core.piece import CallPart, Piece
from proxy.stream.watch import Watch


class State(Enum):
    """State of a stream."""

    RELAYING = "relaying"
    PAUSING = "pausing"
    """The pause point is reached: the next word is not taken any more."""
    ENDED = "ended"
    """The client has the whole answer, but the backend has not ended the body yet."""
    PAUSED = "paused"
    DONE = "done"


DELIVERED = frozenset({State.ENDED, State.DONE})
"""States in which the client has the whole answer."""


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """Bytes came from the backend."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """The backend sent its answer in one body, given here as the pieces of a stream, with an end mark."""

    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class UpstreamEnded:
    """The backend ended the body in good order."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The connection broke or fell silent, with a `message` for the client. It is empty if the answer is to end here on purpose."""

    message: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """The next attempt is open.

    `prompt_tokens` is its estimate, `bound` the `max_tokens` it was sent with, if that is not the client's own.
    The backend may repeat `echo` at its start, and the model the end of `quote`. `exact`: it goes on with the very
    next character; otherwise the white space before the next word may be missing.
    `corrects`: it follows a Correct, Conclude or Search, and begins a paragraph of its own.
    `watch` are its limits, or None if they are those of the attempt before it.
    """

    prompt_tokens: int
    bound: int | None = None
    echo: str = ""
    quote: str = ""
    exact: bool = True
    corrects: bool = False
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """There is no next attempt: the history can't be made shorter, or the backend refused it.

    Calls that should have been corrected are sent as they were written.
    """


StreamEvent: TypeAlias = ChunkReceived | AnswerReceived | UpstreamEnded | CutOff | Reopened | ResumeFailed


_OVER = frozenset({State.DONE, State.PAUSED})

LEGAL: dict[tuple[State, type[StreamEvent]], frozenset[State]] = {
    (State.RELAYING, ChunkReceived): frozenset(State),
    (State.RELAYING, AnswerReceived): _OVER,
    (State.RELAYING, UpstreamEnded): _OVER,
    (State.RELAYING, CutOff): frozenset({State.DONE}),
    (State.PAUSING, ChunkReceived): frozenset(State),
    (State.PAUSING, UpstreamEnded): _OVER,
    (State.PAUSING, CutOff): frozenset({State.DONE}),
    (State.ENDED, ChunkReceived): frozenset({State.ENDED}),
    (State.ENDED, UpstreamEnded): frozenset({State.DONE}),
    (State.ENDED, CutOff): frozenset({State.DONE}),
    (State.PAUSED, Reopened): frozenset({State.RELAYING}),
    (State.PAUSED, ResumeFailed): _OVER,
    (State.PAUSED, CutOff): frozenset({State.DONE}),
}
"""Every legal event and the states that it may lead to; any other pair is a mistake of the driver."""


PauseReason: TypeAlias = Literal[
    "pause point", "window full", "cleared", "restarted", "no room gained", "the answer repeats itself"
]
LAST: frozenset[PauseReason] = frozenset({"no room gained", "the answer repeats itself"})
"""Reasons for which a pause is the last one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Close the upstream, compact, and open the next attempt; answer with Reopened or ResumeFailed.

    `last`: do not open another attempt, because going on gains nothing any more; answer with ResumeFailed.
    """

    reason: PauseReason
    last: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """The backend answered 200 and then refused the prompt: compact it and send it again.

    Without an `overflow` it was refused for its tools, with the text in `refusal`.
    """

    overflow: Overflow | None
    refusal: bytes = b""


@dataclass(frozen=True, slots=True)
class Correct:
    """A tool call can't be read: have the model write it again, and answer with Reopened or ResumeFailed."""

    written: str
    """The model's text of its calls."""
    complaint: str
    """Explanation of the mistake, for the model."""
    forms: tuple[str, ...]
    """Names of the forms in which the faulty calls were written."""


@dataclass(frozen=True, slots=True)
class Search:
    """The model called tools that Spillway itself answers: run them, and answer with Reopened or ResumeFailed."""

    calls: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """The model has thought enough: ask it for the answer, and answer with Reopened or ResumeFailed.

    `ended`: it stopped by itself without a word for the client, or its thinking looped.
    """

    ended: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything was sent; close both sides."""


Interruption: TypeAlias = Pause | Retry | Correct | Search | Conclude
Stop: TypeAlias = Interruption | Finish
