"""Listens to what requests tell, and keeps the last of them, so that they can be looked at.

With nobody looking a request costs it some dozen of assignments, and a chunk of an answer nothing: how far an answer has come
is read off the answer itself, by whoever looks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from proxy.answer.answer import Answer
from proxy.exchange import unique
from proxy.history.checkpoint import Checkpoint
from proxy.live.record import (
    BASE,
    HEADS,
    MOST_EVENTS,
    PARSED,
    PER_EVENT,
    Activity,
    Bodies,
    Note,
    Record,
    Talk,
    Way,
)
from proxy.live.savings import Accounts
from proxy.neutral.request import Request, text_of
from proxy.stages.job import Job
from proxy.telemetry import events as e
from proxy.telemetry.journal import Journals, Told

MOST = 1000
"""Requests that are kept, whatever their size."""
TITLE, CLIENT = 80, 40
"""Characters of a conversation's title and of a client's name."""

_STATES: dict[type, Activity] = {
    e.Compacting: "compacting",
    e.Compacted: "waiting",
    e.Sent: "waiting",
    e.FirstByte: "answering",
    e.Paused: "paused",
    e.Resumed: "answering",
}
_ASIDE = ("ahead", "rewrite")
"""How the names of journals begin that are kept beside a request's own; then comes its job's."""
_HELD = frozenset({e.Taken, e.Answering})
"""Events with something in them that is looked at while the request runs."""
_ENDS = frozenset({e.Finished, e.Failed})
_LEARNED: dict[type, str] = {
    e.WindowLearned: "window_learned",
    e.WindowDisproved: "window_disproved",
    e.Cut: "cut",
}


class Watching(Protocol):
    """Somebody who looks; called at once, and must be quick."""

    def changed(self, talk: Talk) -> None:
        """Something happened in a conversation."""
        ...

    def ended(self, record: Record) -> None:
        """A request is over."""
        ...

    def learned(self, backend: str, model: str, what: str) -> None:
        """Something is known of a model that was not."""
        ...

    def gone(self, talk: Talk) -> None:
        """A conversation is forgotten."""
        ...


class Book:
    """The last requests, and the conversations that they belong to. For one thread."""

    def __init__(self, *, limit: int, clock: Callable[[], float], journals: Journals) -> None:
        """Listen from now on.

        Args:
            limit: bytes that all of it may take, about; 0: nothing is kept.
            clock: seconds since the epoch.
            journals: who tells.
        """
        self.watching: set[Watching] = set()
        self.accounts = Accounts()
        self.since = clock()
        self.clock, self.now = clock, journals.clock
        self._limit = limit
        self._size = self._bodies = 0
        self._number = 0
        self._running: dict[int, Record] = {}
        """By the identity of their outcomes."""
        self._records: deque[Record] = deque()
        self._stripped = 0
        """Of them so many of the oldest have no bodies any more."""
        self._talks: OrderedDict[str, Talk] = OrderedDict()
        """By id, the one that something happened in last at the end."""
        self._heads: dict[tuple[str, bytes], Talk] = {}
        if limit:
            journals.listen(self._told)

    # -- looking

    def talks(self) -> Iterator[Talk]:
        """All conversations, newest first."""
        return reversed(self._talks.values())

    def talk(self, name: str) -> Talk | None:
        """The conversation of this id."""
        return self._talks.get(name)

    def records(self) -> Iterator[Record]:
        """All requests, newest first."""
        return reversed(self._records)

    def named(self, name: str) -> Iterator[Record]:
        """Requests of this id, newest first: clients choose it, so there may be several."""
        return (record for record in self.records() if record.id == name)

    def answering(self) -> list[Talk]:
        """Conversations in which an answer is being made."""
        records = self._running.values()
        return [record.talk for record in records if record.talk is not None and record.state == "answering"]

    @property
    def size(self) -> int:
        """Bytes that all of it takes, about."""
        return self._size

    # -- listening

    def _told(self, told: Told) -> None:
        event = told.event
        kind = type(event)
        if kind is e.Received:
            self._begin(told)
            return
        record = self._running.get(id(told.outcome))
        if record is None:
            self._told_aside(told)
            return
        if kind in _HELD:
            self._taken(record, event)
        else:
            self._note(record, told)
            if kind in _ENDS:
                self._end(record)
                return
        if self.watching and record.talk is not None:
            for each in self.watching:
                each.changed(record.talk)

    def _begin(self, told: Told) -> None:
        self._number += 1
        record = Record(id=told.id, outcome=told.outcome, number=self._number, at=self.clock(), since=told.at)
        self._running[id(told.outcome)] = record
        self._records.append(record)
        self._size += BASE
        self._bound()

    def _note(self, record: Record, told: Told) -> None:
        event, kind = told.event, type(told.event)
        if kind in _STATES:
            record.state = _STATES[kind]
            event = self._moved(record, told)
        elif isinstance(event, e.Summarised) and record.talk is not None:
            record.talk.verdicts.appendleft((self.clock(), event.verdict))
        if self.watching:
            self._learned(told)
        if len(record.events) < MOST_EVENTS:
            record.events.append((told.at - record.since, event))
            self._size += PER_EVENT

    def _moved(self, record: Record, told: Told) -> e.Event:
        """It does something else now; the event as it is kept, without what was said."""
        event = told.event
        if isinstance(event, e.Sent):
            self._forwarded(record, event.body)
            return e.Sent(event.why, event.stream)
        if isinstance(event, e.Compacted):
            if isinstance(event.checkpoint, Checkpoint) and record.talk is not None:
                self.noted(record.talk, Note.of(event.checkpoint))
            return replace(event, checkpoint=None)
        if isinstance(event, e.FirstByte):
            record.began = record.began or told.at
        elif isinstance(event, e.Paused):
            record.sample()
            record.pauses.append((record.prompt or 0) + record.said)
        return event

    def _told_aside(self, told: Told) -> None:
        """What is done for a conversation that no client waits for, or of one that came before this began."""
        kind, _, name = told.id.partition("_")
        own, event = told.outcome.credential, told.event
        known = self.records() if kind in _ASIDE else ()
        record = next((each for each in known if each.unique == name and each.tenant == own), None)
        if isinstance(event, e.Summarised):
            self.accounts.of(told.outcome).spent += event.tokens
        elif isinstance(event, e.CompactedAhead):
            self.accounts.of(told.outcome).ahead += event.seconds
        if record is None or record.talk is None:
            return
        self._note(record, told)
        if not record.running:
            record.state = "idle"
        for each in self.watching:
            each.changed(record.talk)

    def _taken(self, record: Record, event: e.Event) -> None:
        """It is known what it asks, and so whose conversation it goes on with; or there is an answer to be watched."""
        if isinstance(event, e.Answering):
            record.answer = event.answer if isinstance(event.answer, Answer) else None
            return
        assert isinstance(event, e.Taken)
        job, request = event.job, event.request
        assert isinstance(job, Job)
        assert isinstance(request, Request)
        record.job, record.messages, record.unique = job, len(request.messages), job.unique
        record.streamed, record.background = job.prompt.request.stream, job.background
        record.client = _client(job.exchange.header(b"user-agent"))
        if request.raw is None:
            record.bodies = Bodies(request, PARSED * event.size)
        else:
            record.bodies = Bodies(request.raw, event.size)
        self._grown(record.bodies.size)
        talk = record.talk = self._talk_of(record, job)
        if talk.records:
            talk.records[-1].links = ()
        talk.records.append(record)
        talk.turns += 1
        talk.way = Way(who=job.exchange.who(), dialect=job.dialect, route=job.route)
        self._talks.move_to_end(talk.id)
        if job.prompt.checkpoint is not None:
            record.sample()
            assert record.note is not None
            self.noted(talk, record.note)
        self._bound()

    def noted(self, talk: Talk, note: Note) -> None:
        """A conversation has this checkpoint."""
        talk.notes.pop(note.digest, None)
        talk.notes[note.digest] = note
        while len(talk.notes) > HEADS:
            talk.notes.pop(next(iter(talk.notes)))

    def _forwarded(self, record: Record, body: bytes) -> None:
        if record.bodies is not None and body:
            before = record.bodies.size
            record.bodies.forwarded = body
            record.posted += 1
            self._grown(record.bodies.size - before)
            self._bound()

    def _learned(self, told: Told) -> None:
        event = told.event
        what = event.what if isinstance(event, e.Refused) else _LEARNED.get(type(event))
        if what is not None:
            for each in self.watching:
                each.learned(told.outcome.backend, told.outcome.model, what)

    def _end(self, record: Record) -> None:
        del self._running[id(record.outcome)]
        record.end()
        outcome, talk = record.outcome, record.talk
        not_sent = self.accounts.of(outcome).add(record)
        if talk is not None:
            talk.compactions += outcome.compactions
            talk.sent += record.asked
            talk.not_sent += not_sent
            if talk.newest is not record:
                record.links = ()
            self._talks.move_to_end(talk.id)
        for each in self.watching:
            each.ended(record)
            if talk is not None:
                each.changed(talk)

    # -- which conversation

    def _talk_of(self, record: Record, job: Job) -> Talk:
        """The conversation that a request goes on with, or a new one."""
        tenant, named = record.tenant, record.outcome.conversation
        links, sent = job.prompt.links, job.prompt.sent
        talk = self._heads.get((tenant, named.encode())) if named else self._begun(tenant, job)
        if talk is None:
            talk = Talk(id=f"c_{unique()}", tenant=tenant, named=bool(named), first_at=record.at)
            talk.title = _title(job)
            self._talks[talk.id] = talk
        keys = [named.encode()] if named else []
        if not named and links:
            answered = _answered(job)
            keys = [links[answered - 1], links[-1]] if 0 < answered < len(sent) else [links[-1]]
        for key in keys:
            self._keep_head(talk, (tenant, key))
        return talk

    def _begun(self, tenant: str, job: Job) -> Talk | None:
        """The conversation of which a history is known to be a part.

        With nothing answered in it, it is one only if that was asked last: many begin with the same word.
        """
        links = job.prompt.links
        for at in range(len(links) - 1, -1, -1):
            talk = self._heads.get((tenant, links[at]))
            if talk is not None and (talk.heads[-1][1] == links[at] or _first_answer(job) <= at):
                return talk
        return None

    def _keep_head(self, talk: Talk, key: tuple[str, bytes]) -> None:
        other = self._heads.get(key)
        if other is talk and talk.heads[-1] == key:
            return
        if other is not None and key in other.heads:
            other.heads.remove(key)
        self._heads[key] = talk
        talk.heads.append(key)
        if len(talk.heads) > HEADS:
            self._drop_head(talk, talk.heads.popleft())

    def _drop_head(self, talk: Talk, key: tuple[str, bytes]) -> None:
        if self._heads.get(key) is talk:
            del self._heads[key]

    # -- bounds

    def _bound(self) -> None:
        """Let go of the oldest: of requests where they alone take half of the room, and then of bodies."""
        for _ in range(len(self._records)):
            if len(self._records) <= MOST and self._size - self._bodies <= self._limit // 2:
                break
            oldest = self._records.popleft()
            self._stripped = max(0, self._stripped - 1)
            if oldest.running:
                self._records.append(oldest)
            else:
                self._forget(oldest)
        while self._size > self._limit and self._stripped < len(self._records):
            self._strip(self._records[self._stripped])
            self._stripped += 1

    def _strip(self, record: Record) -> None:
        """Let go of a request's bodies."""
        if record.bodies is not None:
            self._grown(-record.bodies.size)
            record.bodies = None

    def _grown(self, size: int) -> None:
        """Bodies take so many bytes more."""
        self._bodies += size
        self._size += size

    def _forget(self, record: Record) -> None:
        self._strip(record)
        self._size -= record.size
        talk = record.talk
        if talk is None:
            return
        talk.records.remove(record)
        if talk.records:
            return
        self._talks.pop(talk.id, None)
        for key in talk.heads:
            self._drop_head(talk, key)
        for each in self.watching:
            each.gone(talk)


def _client(agent: str | None) -> str:
    """The program that a User-Agent names."""
    name = (agent or "").split(" ", maxsplit=1)[0].split("/", maxsplit=1)[0][:CLIENT]
    return name if name.isprintable() else ""


def _title(job: Job) -> str:
    first = next((message for message in job.prompt.sent if message.get("role") == "user"), {})
    words = " ".join(text_of(first)[: 8 * TITLE].split())
    return words if len(words) <= TITLE else words[: TITLE - 1] + "…"


def _first_answer(job: Job) -> int:
    """Index of the first message of a model's in the history; its length if there is none."""
    sent = job.prompt.sent
    return next((at for at, message in enumerate(sent) if message.get("role") == "assistant"), len(sent))


def _answered(job: Job) -> int:
    """How many messages there are up to the last of a model's, with that."""
    sent = job.prompt.sent
    return next((at + 1 for at in range(len(sent) - 1, -1, -1) if sent[at].get("role") == "assistant"), 0)
