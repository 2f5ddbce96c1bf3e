"""Events of a stream, and what is to be done about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from proxy.backends.overflow import Overflow
from proxy.core.piece import CallPart, Piece


class State(Enum):
    """State of a stream."""

    RELAYING = "relaying"
    PAUSED = "paused"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """Bytes came from the backend."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """The backend sent its answer in one body: the pieces in which a stream would carry it, with its end mark."""

    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class UpstreamEnded:
    """The backend ended the body in good order."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The connection broke or fell silent, as the `message` tells the client; empty: somebody wants no more than there is."""

    message: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """The next attempt is open.

    `prompt_tokens` is its estimate, `bound` the `max_tokens` it was sent with, if that is not the client's own.
    The backend may repeat `echo` at its start, the model the end of `quote`. `exact`: it goes on with the very
    next character; else the white space before the next word may be missing.
    `calls`: the attempt before was left for a tool call, which is to be made again, maybe with the text before it.
    `corrects`: it was asked for by Correct, Conclude or after a Search, and goes on with a paragraph of its own.
    """

    prompt_tokens: int
    bound: int | None = None
    echo: str = ""
    quote: str = ""
    exact: bool = True
    calls: bool = False
    corrects: bool = False


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """There is no next attempt: the history can't be made shorter, or the backend refused it.

    What had to be corrected is sent as it was written.
    """


StreamEvent: TypeAlias = ChunkReceived | AnswerReceived | UpstreamEnded | CutOff | Reopened | ResumeFailed


LEGAL: dict[tuple[State, type[StreamEvent]], frozenset[State]] = {
    (State.RELAYING, ChunkReceived): frozenset({State.RELAYING, State.PAUSED, State.DONE}),
    (State.RELAYING, AnswerReceived): frozenset({State.DONE, State.PAUSED}),
    (State.RELAYING, UpstreamEnded): frozenset({State.DONE, State.PAUSED}),
    (State.RELAYING, CutOff): frozenset({State.DONE}),
    (State.PAUSED, Reopened): frozenset({State.RELAYING}),
    (State.PAUSED, ResumeFailed): frozenset({State.DONE, State.PAUSED}),
    (State.PAUSED, CutOff): frozenset({State.DONE}),
}
"""Every legal event and the states it may lead to; anything else is a mistake of the driver."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Close the upstream, compact, and open the next attempt; answer with Reopened or ResumeFailed.

    `last`: there is to be no next one, because going on gains nothing any more; answer with ResumeFailed.
    """

    reason: str
    last: bool = False


LOOP = "the answer repeats itself"
"""Reason of a pause that ends it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The backend refused the prompt although it had answered 200: compact and send it again.

    Without an `overflow` it was refused for its tools, in these words.
    """

    overflow: Overflow | None
    refusal: bytes = b""


@dataclass(frozen=True, slots=True)
class Correct:
    """A tool call can't be made: have it written once more, and answer with Reopened or ResumeFailed."""

    written: str
    """What the model wrote of its calls."""
    complaint: str
    """What to tell it."""
    forms: tuple[str, ...]
    """In which the calls that can't be made were written."""


@dataclass(frozen=True, slots=True)
class Search:
    """The model called tools that Spillway answers: do that, and answer with Reopened or ResumeFailed."""

    calls: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """The model has thought enough: have it answer now, and answer with Reopened or ResumeFailed.

    `ended`: it ended by itself, without a word for the client, or went round in circles.
    """

    ended: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything was sent; close both sides."""


Interruption: TypeAlias = Pause | Retry | Correct | Search | Conclude
Stop: TypeAlias = Interruption | Finish
