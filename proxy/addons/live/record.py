"""One request, and the conversation that it belongs to, as they are kept to be looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.addons.live.bodies import Bodies
from proxy.compaction.budget import ContextBudget
from proxy.core.history.checkpoint import By, Checkpoint
from proxy.core.piece import whole_number
from proxy.core.request import Request
from proxy.job import Job
from proxy.stream.answer import Answer
from proxy.telemetry.outcome import Activity, Outcome

BASE, PER_EVENT = 3000, 300
"""Bytes that a request takes without its bodies, and each of its events, about."""
PARSED = 4
"""Times the bytes of a body that it takes as the objects made of it, about."""
CLIENT = 40
"""Characters of a client's name."""
HEADS = 64
"""Ends of histories by which a conversation is found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A checkpoint without its messages."""

    scope: str
    digest: bytes
    kind: str
    covered: int
    by: By | None
    created: float

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Note:
        """Copy a checkpoint's fields, without its messages."""
        return cls(
            scope=checkpoint.scope,
            digest=checkpoint.digest,
            kind=checkpoint.kind,
            covered=checkpoint.covered,
            by=checkpoint.by,
            created=checkpoint.created,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """Breakdown of a prompt in tokens; the parts add up to all of it."""

    system: int
    tools: int
    summary: int
    recalled: int
    tail: int


class Record:
    """One request. What is not known of it yet stands in the class: each request makes one."""

    talk: Talk | None = None
    running = True
    unique = ""
    """Of its job: what is done for it in the background has it in its name."""
    job: Job | None = None
    answer: Answer | None = None
    """Both only while it runs."""
    bodies: Bodies | None = None
    agent: str | None = None
    """What the client calls itself."""
    streamed = False
    background = False
    messages: int | None = None
    budget: ContextBudget | None = None
    note: Note | None = None
    """The checkpoint that it was sent with, which itself is known only while it runs."""
    checkpoint: Checkpoint | None = None
    scope = ""
    links: Sequence[bytes] = ()
    """Of the client's history as it was sent; kept for the newest request of a conversation only."""
    prompt: int | None = None
    """Tokens of the prompt of the newest attempt, and of what was said in it."""
    answer_tokens = 0
    sent_tokens = 0
    """Tokens of the prompts of all attempts."""
    saved = 0
    """Tokens by which the prompt was shorter than it would have been."""
    spent = 0
    """Tokens that summaries for it took."""
    pauses: Sequence[int] = ()
    """Tokens that the window held when it was paused."""
    speed: float | None = None
    """Tokens a second of the whole answer."""
    posted = 0
    """Bodies that were sent for it."""
    parts: tuple[int, Parts] | None = None
    """What the body of that number holds, once somebody asked."""

    def __init__(self, outcome: Outcome, number: int, at: float) -> None:
        """Make it.

        Args:
            outcome: its own.
            number: of requests since the start: later ones have higher ones.
            at: seconds since the epoch when it came.
        """
        self.outcome = outcome
        self.number = number
        self.at = at

    @property
    def size(self) -> int:
        """Bytes that it takes without its bodies, about."""
        return BASE + PER_EVENT * len(self.outcome.events)

    @property
    def since(self) -> float:
        """When it came, on the clock of the telemetry."""
        return self.outcome.since

    @property
    def tenant(self) -> str:
        """A digest of whose it is."""
        return self.outcome.credential

    @property
    def state(self) -> Activity:
        """Current activity; `idle` after the end."""
        return self.outcome.doing if self.running else "idle"

    @property
    def client(self) -> str:
        """The program that its User-Agent names."""
        name = (self.agent or "").split(" ", maxsplit=1)[0].split("/", maxsplit=1)[0][:CLIENT]
        return name if name.isprintable() else ""

    @property
    def points(self) -> tuple[int, int, int] | None:
        """Trigger, target and pause point in tokens."""
        budget = self.budget
        return None if budget is None else (budget.brim, budget.goal, budget.pause_point)

    def attach(self, job: Job, request: Request, size: int) -> None:
        """Attach the job once the request is read; `request` is as the client sent it, `size` its bytes."""
        self.job, self.messages, self.unique = job, len(request.messages), job.unique
        self.streamed, self.background = job.prompt.request.stream, job.background
        self.agent = job.exchange.header(b"user-agent")
        raw = request.raw
        self.bodies = Bodies(request, PARSED * size) if raw is None else Bodies(raw, size)

    def sample(self) -> None:
        """Look how things stand."""
        if (job := self.job) is not None:
            prompt = job.prompt
            if prompt.checkpoint is not self.checkpoint:
                self.checkpoint = prompt.checkpoint
                self.note = None if prompt.checkpoint is None else Note.of(prompt.checkpoint)
            self.budget, self.spent = job.budget, sum(job.managed.spent)
            self.saved, self.prompt = prompt.saved, prompt.estimate.tokens
            self.posted = job.state.posts
            if self.bodies is not None:
                self.bodies.forward(job.state.posted)
        if self.answer is not None:
            self.follow()
            self.sent_tokens = sum(each.prompt_tokens for each in self.answer.attempts)
        elif self.outcome.tokens_after is not None:
            self.sent_tokens = self.outcome.tokens_after

    def follow(self) -> None:
        """Look how far the answer has come, which is done for many answers many times."""
        if self.answer is not None:
            attempt = self.answer.attempts[-1]
            self.prompt, self.answer_tokens = attempt.prompt_tokens, attempt.completion_tokens

    def paused(self) -> None:
        """Record how full the window was at a pause."""
        self.sample()
        self.pauses = (*self.pauses, (self.prompt or 0) + self.answer_tokens)

    def total_answer_tokens(self) -> int:
        """Return the completion tokens of the whole answer so far."""
        return 0 if self.answer is None else self.answer.completion_tokens

    def end(self) -> None:
        """Record the final figures, and drop references to everything else."""
        self.sample()
        outcome, job = self.outcome, self.job
        usage = outcome.usage
        tokens = whole_number(usage.get("completion_tokens")) if usage else 0
        if self.answer is None:
            self.answer_tokens = tokens
        elif not tokens:
            tokens = self.answer.completion_tokens
        first = outcome.first_byte
        if self.streamed and tokens and first is not None and outcome.seconds > first:
            self.speed = tokens / (outcome.seconds - first)
        if job is not None:
            self.links, self.scope = job.prompt.links, job.scope
        self.running = False
        self.job = self.answer = self.checkpoint = None


@dataclass(slots=True, kw_only=True, eq=False)
class Talk:
    """One conversation: requests of which each goes on with, repeats or edits another."""

    id: str
    tenant: str
    named: bool
    title: str = ""
    first_at: float
    turns: int = 0
    compactions: int = 0
    sent: int = 0
    not_sent: int = 0
    records: deque[Record] = field(default_factory=deque)
    """Those that are kept, oldest first; there is one at least."""
    heads: deque[tuple[str, bytes]] = field(default_factory=deque)
    """Keys under which it is found."""
    notes: dict[bytes, Note] = field(default_factory=dict)
    """Checkpoints of it that are known, by digest, oldest first."""
    verdicts: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=20))
    """Found about its summaries, newest first, with the seconds since the epoch."""

    @property
    def newest(self) -> Record:
        """The request that came last."""
        return self.records[-1]

    @property
    def running(self) -> Record | None:
        """The newest that is being served, if any is."""
        return next((record for record in reversed(self.records) if record.running), None)

    @property
    def shown(self) -> Record:
        """The request that its row is about."""
        return self.running or self.newest
