"""What can happen to a request, as facts of the past. Tokens and seconds are the units throughout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Received:
    """A client asked something in this dialect. `credential` is a digest, never the key.

    `trace`: its `traceparent` and `tracestate` (W3C Trace Context), None: it sent none.
    """

    dialect: str
    credential: str
    trace: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """The client names the conversation; `conversation` is a digest."""

    conversation: str


@dataclass(frozen=True, slots=True)
class Routed:
    """It goes to this backend, which knows the model by this id."""

    backend: str
    model: str


@dataclass(frozen=True, slots=True)
class Taken:
    """It was read and prepared. `job` is it as the stages know it; `request` is it as it came, in so many bytes.

    What was said is in there: it is for those who show it to whom it belongs (`proxy.live`), and for nobody else, and is
    never kept with what happened.
    """

    job: object = field(repr=False, compare=False)
    request: object = field(repr=False, compare=False)
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The client asks for what nobody here does, and goes on without it; each kind is named once."""

    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mended:
    """The history was one that a backend would have refused; each kind of fault is named once."""

    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stabilised:
    """A billing line or cache marks were stripped from the prompt; each kind is named once."""

    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shaped:
    """The policy had parts of the prompt shorter than the client sent them: each kind (`results`), and the tokens it saved."""

    saved: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The prompt as it stands has so many tokens, in a window of so many; None: nobody tells the window."""

    tokens: int
    window: int | None
    tools: Literal["", "emulated"] = ""


@dataclass(frozen=True, slots=True)
class Compacting:
    """The history of so many tokens is being shortened."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Summarising:
    """A model is asked for a summary."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """A model was asked for a summary. `verdict`: what was found about it (`proxy.shortening.verification`).

    `tokens`: what it read and wrote, as far as it was told, else by estimate.
    """

    verdict: str
    tokens: int = 0

    @property
    def used(self) -> bool:
        """Whether it was fit to be used."""
        return self.verdict in ("kept", "mended")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The history was shortened, or could not be: then `after` equals `before`.

    `summary`: what stands for what was taken out: `written` by a model, an `extract` made by code, or empty for neither.
    `rungs`: of the ladder, those that took something out. `messages`: how many the history had before, and has after.
    `cleaned`: tool results that no longer stand in it as they did. `cut`: tokens of the user's earlier words that are left out of
    the middle of messages which stay, and of how many.
    """

    kind: str
    before: int
    after: int
    seconds: float
    summary: str = ""
    rungs: tuple[str, ...] = ()
    messages: tuple[int, int] = (0, 0)
    cleaned: int = 0
    cut: tuple[int, int] = (0, 0)

    @property
    def gained(self) -> bool:
        """Whether it helped."""
        return self.after < self.before

    @property
    def ratio(self) -> float:
        """Tokens after it as a fraction of those before."""
        return self.after / max(1, self.before)


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """What was done to the history is kept as this `checkpoint`. As in `Taken`."""

    checkpoint: object = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Recalled:
    """Passages of the covered history stand in front of the newest user message; the last one counts."""

    passages: int
    tokens: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MessageCut:
    """The newest user message alone exceeds the window: of its `whole` tokens so many are left out; the last one counts."""

    tokens: int
    whole: int


@dataclass(frozen=True, slots=True)
class Searched:
    """The model searched the conversation, and got so many passages."""

    passages: int


@dataclass(frozen=True, slots=True)
class CompactedAhead:
    """What became of a compaction that nobody waited for.

    `done`: its checkpoint is stored; `cancelled`: something else came first; `failed`: the backend was lost; `useless`: there was
    nothing to gain, or the next turn did not go on with what it was made for.
    """

    became: Literal["done", "cancelled", "failed", "useless"]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A client's own compaction was answered with what a model wrote for one before."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request went to the backend: the first, or another one for this reason; `stream`: its answer is to be one."""

    why: str
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Repeated:
    """So many tokens of this prompt are those that the one before it in the conversation began with.

    `why` no more of that one are: `first` (there was none, or it is forgotten), `tools` (these, or other options of the
    prompt, changed), `system`, `edited` (by the client), `shortened` (by Spillway); empty: all of it are.
    """

    tokens: int
    prompt: int
    why: str


@dataclass(frozen=True, slots=True)
class Reused:
    """The backend said how many tokens of the first attempt's prompt it had read before."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend would not take it: too long, or with tools. `origin`: in whose words; `window` if it was named."""

    what: Literal["overflow", "tools"]
    origin: str
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BackendFailed:
    """The backend could not be reached, or broke off; `error` is a class name."""

    error: str


@dataclass(frozen=True, slots=True)
class FirstByte:
    """The backend began to answer."""


@dataclass(frozen=True, slots=True)
class Answering:
    """There is an answer to be watched: `answer` grows while it is made. As in `Taken`."""

    answer: object = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Cut:
    """The backend reported far fewer prompt tokens than were sent: it cut the prompt in silence."""

    expected: int
    reported: int


@dataclass(frozen=True, slots=True)
class WindowLearned:
    """A window is believed from now on, though no error named it; `before`: what was believed, None: nothing."""

    window: int
    origin: str
    before: int | None = None


@dataclass(frozen=True, slots=True)
class WindowDisproved:
    """A window that had been learned is given up: the backend held so many tokens at once."""

    window: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Called:
    """Tool calls were read from text; what became of them."""

    form: str
    became: str
    number: int


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call can't be made, or was only shown: `reason` (`proxy.emulation.verdict.CallFault`).

    `tool` is a name that the model wrote; `form`: in which the call was written, `native` if the backend told it as one.
    `provider`: the kind of backend.
    """

    reason: str
    tool: str
    form: str
    provider: str


@dataclass(frozen=True, slots=True)
class CallsMended:
    """Tool calls that had `leaked` into the text were read back, or such as were `repeated` in one answer left out."""

    what: Literal["leaked", "repeated"]
    number: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The running answer was paused."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer goes on, asked for in this way."""

    how: str


@dataclass(frozen=True, slots=True)
class OutOfRoom:
    """The answer ends here although there was more to say: no way to go on, or no more resumes."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody who looks at it had the answer end here."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The client was answered; the outcome is complete."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The client got an error, or left; the outcome is complete."""


Event: TypeAlias = (
    Received
    | Named
    | Routed
    | Taken
    | Mended
    | LeftOut
    | Stabilised
    | Shaped
    | Measured
    | Compacting
    | Summarising
    | Summarised
    | Compacted
    | CheckpointKept
    | Recalled
    | MessageCut
    | CompactedAhead
    | HandedOver
    | Searched
    | Sent
    | Repeated
    | Reused
    | Refused
    | BackendFailed
    | FirstByte
    | Answering
    | Cut
    | WindowLearned
    | WindowDisproved
    | Called
    | MalformedCall
    | CallsMended
    | Paused
    | Resumed
    | OutOfRoom
    | Stopped
    | Finished
    | Failed
)
