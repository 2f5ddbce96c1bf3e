"""Recent requests and their conversations, in memory, for the page and the terminal (docs/api-live.md).

A request costs a few assignments when it begins, is read and ends, and a chunk of an answer costs nothing: events are stored in the
request's own outcome, and a viewer reads the progress of an answer from the answer itself.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.compaction.budget import ContextBudget
from proxy.core.errors import ContextOverflow
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.piece import as_count
from proxy.core.request import Request, text_of
from proxy.exchange import unique
from proxy.job import Job
from proxy.net.headers import Headers
from proxy.outcome import MOST_EVENTS, Event, Outcome
from proxy.stream.answer import Answer
from proxy.tokens.cache import Cache, CacheMemory, Shares

# Others have a limit of their own because bodies that are not JSON once pushed everybody's conversations out of memory.
MOST_REQUESTS, MOST_OTHERS = 1000, 100
"""Most requests remembered, however small they are: of conversations that a backend answered, and all others."""
_PARSED = 4
"""Approximate bytes of memory per byte of a body that is kept as parsed objects."""
_CLIENT, _TITLE = 40, 80
"""Characters of a client's name and of a conversation's title."""
_CHECKPOINTS = 64
"""Most checkpoints remembered of one conversation."""


@dataclass(slots=True, eq=False)
class Bodies:
    """Bodies of one request, which are forgotten first; empty once they are."""

    received: bytes | Request = b""
    """Body as received, if it was JSON of chat completions, else the request parsed from it."""
    received_size: int = 0
    headers: Headers = ()
    """Client's headers: later work for the conversation uses its credentials."""
    forwarded: bytes = b""
    """Latest body sent upstream."""
    answered: str = ""
    """Text of the answer, once it has ended."""
    parts: tuple[bytes, dict[str, int]] | None = None
    """Forwarded body and the breakdown of its prompt, once a viewer has asked for it."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory that they take."""
        return self.received_size + (0 if self.forwarded is self.received else len(self.forwarded)) + len(self.answered)


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One request. Sizes are tokens."""

    outcome: Outcome
    number: int
    """Number of the request since the start; later ones have higher numbers."""
    at: float
    """Arrival in seconds since the epoch."""
    conversation: "Conversation | None" = None
    running: bool = True
    job: Job | None = None
    """Job, while the request runs; the same holds for `answer`."""
    answer: Answer | None = None
    bodies: Bodies = field(default_factory=Bodies)
    client: str = ""
    streamed: bool = False
    background: bool = False
    """Whether it is a background task of the client, such as writing a title."""
    messages: int | None = None
    budget: ContextBudget | None = None
    checkpoint: dict[str, Any] | None = None
    """Checkpoint at the beginning of the prompt, as described by `describe`."""
    scope: str = ""
    links: Sequence[bytes] = ()
    """Digests of the client's history, kept for the newest request of a conversation only."""
    prompt_tokens: int | None = None
    """Size of the newest attempt's prompt, or None if unknown."""
    answer_tokens: int = 0
    """Size of the newest attempt's answer."""
    sent_tokens: int = 0
    """Total size of the prompts of all attempts."""
    resent_tokens: int = 0
    """Total size of the prompts of attempts that resumed an answer."""
    keys: list[tuple[str, bytes]] = field(default_factory=list)
    """Keys by which requests that follow find its conversation."""
    change: int = 0
    """Number of the change with which it ended."""
    response: str = ""
    """Name of its answer in the store; empty if it is not stored."""

    def refresh(self) -> None:
        """Update the figures from the job, while it runs."""
        if self.job is None:
            return
        prompt = self.job.prompt
        self.checkpoint = None if prompt.checkpoint is None else describe(prompt.checkpoint)
        self.budget, self.bodies.forwarded = self.job.budget, self.job.posted
        self.prompt_tokens = self.job.estimate.tokens
        self.sent_tokens = self.outcome.sent.tokens_after or 0
        if self.answer is not None:
            newest = self.answer.attempts[-1]
            self.prompt_tokens, self.answer_tokens = newest.prompt_tokens, newest.completion_tokens
            self.resent_tokens = sum(attempt.prompt_tokens for attempt in self.answer.attempts[1:])
            self.sent_tokens = self.answer.attempts[0].prompt_tokens + self.resent_tokens
        # Refused although shortened: only the size before that explains why.
        if self.outcome.error == ContextOverflow.code:
            self.prompt_tokens = max(self.prompt_tokens, self.outcome.sent.tokens_before or 0)

    def end(self) -> None:
        """Take the final figures, and drop references to the job and the answer."""
        self.refresh()
        if self.job is not None:
            self.links, self.scope = self.job.prompt.links, self.job.scope
            if self.answer is None:
                self.answer_tokens = as_count((self.outcome.usage or {}).get("completion_tokens"))
            else:
                self.bodies.answered = self.answer.text
        self.running, self.job, self.answer = False, None, None

    def forget_bodies(self) -> None:
        """Drop the bodies and what depends on them."""
        self.bodies = Bodies()


@dataclass(slots=True, kw_only=True, eq=False)
class Conversation:
    """Group of requests, each of which continues, repeats or edits another one."""

    id: str
    tenant: str
    title: str
    named: bool
    """Whether the client gave it an id."""
    first_at: float
    records: deque[RequestRecord] = field(default_factory=deque)
    """Remembered requests, oldest first; empty only if memory lost the conversation."""
    checkpoints: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """Known checkpoints by digest, as described by `describe`, oldest first."""
    scopes: set[str] = field(default_factory=set)
    """Scopes of its checkpoints in the store."""
    responses: set[str] = field(default_factory=set)
    """Names of its answers in the store."""
    change: int = 0
    """Number of its newest change."""

    @property
    def newest(self) -> RequestRecord:
        """The request that came last."""
        return self.records[-1]

    @property
    def running(self) -> RequestRecord | None:
        """The newest request that is being served, if any is."""
        return next((record for record in reversed(self.records) if record.running), None)

    def received(self) -> RequestRecord | None:
        """Return the newest request whose body memory has, other than background tasks."""
        return next((each for each in reversed(self.records) if each.bodies.received and not each.background), None)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Remember a checkpoint that was made for it or found."""
        self.checkpoints.pop(checkpoint.digest, None)
        self.checkpoints[checkpoint.digest] = describe(checkpoint)
        if len(self.checkpoints) > _CHECKPOINTS:
            del self.checkpoints[next(iter(self.checkpoints))]


class RequestHistory(AddOn):
    """Remembers the newest requests, with an equal share for each credential. For one thread."""

    def __init__(
        self, memory: CacheMemory, clock: Callable[[], float], now: Callable[[], float], *, remembers: bool
    ) -> None:
        """Start empty.

        Args:
            memory: bounds the bodies of finished requests.
            clock: seconds since the epoch.
            now: monotonic seconds, as outcomes have them.
            remembers: whether any request is remembered.
        """
        self.clock, self.now = clock, now
        self.records: dict[Outcome, RequestRecord] = {}
        """Records by outcome, in order of arrival."""
        self.conversations: dict[str, Conversation] = {}
        """Conversations by id, the one with the newest request last."""
        self.changes = 0
        """Number of changes so far; a live feed remembers the last number it has sent."""
        self.viewers = Counter[str]()
        """Number of open live feeds, by viewer."""
        self.lost: Callable[[Conversation, RequestRecord], None] = lambda *_: None
        """Called with a conversation that memory loses, and the last of its requests."""
        self._remembers = remembers
        self._number = 0
        self.bodies = Cache[int, RequestRecord](memory, dropped=RequestRecord.forget_bodies)
        """Finished requests that still have bodies, by number."""
        self._answered = Shares[Outcome, RequestRecord](MOST_REQUESTS)
        self._others = Shares[Outcome, RequestRecord](MOST_OTHERS)
        self._by_key: dict[tuple[str, bytes], RequestRecord] = {}

    @override
    def started(self, outcome: Outcome, headers: Headers) -> None:
        """Start to remember a request."""
        del headers
        if self._remembers:
            self._number += 1
            self.records[outcome] = RequestRecord(outcome=outcome, number=self._number, at=self.clock())

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Follow a request, and background work that follows it."""
        record = self.records.get(outcome.cause or outcome)
        if record is None:
            return
        name, fields = event.name, event.fields
        if name == "taken":
            self._attach(record, **fields)
        elif name == "returned":
            record.job = fields["job"]
        elif name == "answering":
            record.answer = fields["answer"]
        elif name == "checkpoint_kept" and record.conversation is not None:
            record.conversation.add_checkpoint(fields["checkpoint"])
        if outcome.cause is not None and outcome.events and outcome.events[-1] is event:
            outcome.cause.events = [*outcome.cause.events, event][:MOST_EVENTS]
        if record.conversation is not None:
            self.changes += 1
            record.conversation.change = self.changes

    @override
    def ended(self, outcome: Outcome) -> None:
        """Keep the parts of a finished request that viewers see."""
        record = self.records.get(outcome)
        if record is None:  # rejected before it was recorded, or background work
            return
        record.end()
        self.changes += 1
        record.change = self.changes
        if record.conversation is not None:
            record.conversation.change = self.changes
            record.conversation.scopes.add(record.scope)
            record.conversation.responses |= {record.response} - {""}
            if record.conversation.newest is not record:
                record.links = ()
        if size := record.bodies.size:
            self.bodies.put(record.number, record, size)
        useful = outcome.answered and record.conversation is not None
        gone = (self._answered if useful else self._others).put(outcome, record)
        if gone is not None:
            self._forget(gone)
            if gone.conversation is not None and not gone.conversation.records:
                self.lost(gone.conversation, gone)

    def _attach(self, record: RequestRecord, job: Job, request: Request, size: int) -> None:
        """Fill in a record as soon as its request is read; `request` is as the client sent it, in `size` bytes."""
        record.job, record.messages, record.background = job, len(request.messages), job.background
        record.streamed = job.prompt.request.stream
        if request.keeping is not None:
            record.response = f"resp_{job.unique}"
        record.bodies = Bodies(request, _PARSED * size, job.exchange.headers)
        if request.raw is not None:
            record.bodies = Bodies(request.raw, len(request.raw), job.exchange.headers)
        agent = (job.exchange.header(b"user-agent") or "").split(" ", 1)[0].split("/", 1)[0][:_CLIENT]
        record.client = agent if agent.isprintable() else ""
        conversation = record.conversation = self._conversation_of(record, job)
        if conversation.records:
            conversation.newest.links = ()
        conversation.records.append(record)
        self.conversations[conversation.id] = self.conversations.pop(conversation.id, conversation)
        for key in record.keys:
            self._by_key[key] = record
        if job.prompt.checkpoint is not None:
            conversation.add_checkpoint(job.prompt.checkpoint)

    def _conversation_of(self, record: RequestRecord, job: Job) -> Conversation:
        """Find the conversation that a request continues, or begin one."""
        tenant, name, links = record.outcome.credential, record.outcome.conversation, job.prompt.links
        answers = [at for at, message in enumerate(job.prompt.sent) if message.get("role") == "assistant"]
        found: RequestRecord | None = None
        if name:
            record.keys = [(tenant, name.encode())]
            found = self._by_key.get(record.keys[0])
        else:
            # Clients may rewrite their newest message later: the last answer before it still finds the conversation.
            ends = {at for at in (*answers[-1:], len(links) - 1) if 0 <= at < len(links)}
            record.keys = [(tenant, links[at]) for at in sorted(ends)]
            for at in range(len(links) - 1, -1, -1):
                other = self._by_key.get((tenant, links[at]))
                # Many chats begin with the same words. So a match without an answer in the shared part counts only if it is
                # the newest request of its conversation, which this one then repeats.
                if other is not None and (_is_newest(other) or (answers and answers[0] <= at)):
                    found = other
                    break
        if found is not None and found.conversation is not None:
            return found.conversation
        title = _title(job)
        return Conversation(id=f"c_{unique()}", tenant=tenant, title=title, named=bool(name), first_at=record.at)

    def forget(self, conversation: Conversation) -> None:
        """Forget the requests of a conversation of which none runs."""
        for record in [*conversation.records]:
            self._forget(record)

    def _forget(self, record: RequestRecord) -> None:
        del self.records[record.outcome]
        self._answered.pop(record.outcome)
        self._others.pop(record.outcome)
        self.bodies.remove(record.number)
        for key in record.keys:
            if self._by_key.get(key) is record:
                del self._by_key[key]
        conversation = record.conversation
        if conversation is not None:
            conversation.records.remove(record)
            if not conversation.records:
                del self.conversations[conversation.id]
            elif not conversation.newest.links:  # the newer request that took the links over is forgotten
                conversation.newest.links = record.links


def describe(found: Checkpoint) -> dict[str, Any]:
    """Describe a checkpoint for viewers, without its messages."""
    return {"kind": found.kind, "covered": found.covered, "summary": found.by, "created_at": found.created}


def _is_newest(record: RequestRecord) -> bool:
    return record.conversation is not None and record.conversation.newest is record


def _title(job: Job) -> str:
    first = next((message for message in job.prompt.sent if message.get("role") == "user"), {})
    words = " ".join(text_of(first)[: 8 * _TITLE].split())
    return words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…"
