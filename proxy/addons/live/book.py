"""Listens to what requests tell, and keeps the last of them, so that they can be looked at.

With nobody looking a request costs it a few assignments when it comes, is read and has ended, and a chunk of an answer nothing:
what happened is kept by the request's own outcome, and how far an answer has come is read off the answer itself, by whoever looks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from typing_extensions import override

from proxy.addon import AddOn
from proxy.addons.live.record import HEADS, PER_EVENT, Note, Record, Talk
from proxy.addons.live.savings import Accounts
from proxy.core.request import Request, text_of
from proxy.exchange import unique
from proxy.job import Job
from proxy.telemetry.events import Event
from proxy.telemetry.outcome import MOST_EVENTS, Outcome

MOST = 1000
"""Requests that are kept, whatever their size."""
TITLE = 80
"""Characters of a conversation's title."""

_LEARNED = frozenset({"window_learned", "window_disproved", "cut"})
"""Events that change what is believed of a model; and `refused`, whose `what` does."""


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


class Book(AddOn):
    """The last requests, and the conversations that they belong to. For one thread."""

    def __init__(self, limit: int, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """Keep nothing yet.

        Args:
            limit: bytes that all of it may take, about, without those that are being served; 0: nothing is kept.
            clock: seconds since the epoch.
            now: seconds that never go back, as outcomes have them.
        """
        self.watching: dict[Watching, None] = {}
        self.accounts = Accounts()
        self.since = clock()
        self.clock, self.now = clock, now
        self._limit = limit
        self._told = self._bodies = 0
        """Bytes that all of it takes, about, without bodies, and that these take."""
        self._number = 0
        self._running: dict[Outcome, Record] = {}
        self._ended: deque[Record] = deque()
        """As they ended."""
        self._stripped = 0
        """Of these so many of the oldest have no bodies any more."""
        self._talks: OrderedDict[str, Talk] = OrderedDict()
        """By id, the one that something happened in last at the end."""
        self._heads: dict[tuple[str, bytes], Talk] = {}

    # -- looking

    def talks(self) -> Iterator[Talk]:
        """All conversations, newest first."""
        return reversed(self._talks.values())

    def talk(self, name: str) -> Talk | None:
        """The conversation of this id."""
        return self._talks.get(name)

    def records(self) -> list[Record]:
        """All requests, newest first."""
        return sorted([*self._ended, *self._running.values()], key=lambda each: -each.number)

    def named(self, name: str) -> Iterator[Record]:
        """Requests of this id, newest first: clients choose it, so there may be several."""
        return (record for record in self.records() if record.outcome.id == name)

    def answering(self) -> list[Talk]:
        """Conversations in which an answer is being made."""
        records = self._running.values()
        return [record.talk for record in records if record.talk is not None and record.state == "answering"]

    @property
    def size(self) -> int:
        """Bytes that all of it takes, about, without those that are being served."""
        return self._told + self._bodies

    def watch(self, who: Watching) -> None:
        """Tell them what happens, until they `leave`."""
        self.watching[who] = None

    def leave(self, who: Watching) -> None:
        """Tell them no more."""
        self.watching.pop(who, None)

    # -- listening

    @override
    def begun(self, outcome: Outcome) -> None:
        """Keep a request from now on."""
        if not self._limit:
            return
        self._number += 1
        self._running[outcome] = Record(outcome, self._number, self.clock())

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Take down what the outcome itself does not keep, and tell the viewers."""
        if outcome.cause is not None:
            self._happened_ahead(outcome, event)
        elif (record := self._running.get(outcome)) is not None:
            if event.name == "taken":
                self._attach(record, **event.fields)
            elif event.name == "answering":
                record.answer = event.fields["answer"]
            else:
                self._note(record, event)
            if self.watching:
                self._show(record, event)

    def _happened_ahead(self, outcome: Outcome, event: Event) -> None:
        """Take down background work after a request, and add its events to those of the request."""
        if event.name == "summarised":
            self.accounts.of(outcome).spent += event.fields["tokens"]
        elif event.name == "compacted_ahead":
            self.accounts.of(outcome).ahead += event.fields["seconds"]
        record = next((each for each in self.records() if each.outcome is outcome.cause), None)
        if record is None or record.talk is None:
            return
        self._note(record, event)
        events = record.outcome.events
        if len(events) < MOST_EVENTS and event.name != "checkpoint_kept":
            events.append(event)
            self._told += 0 if record.running else PER_EVENT
        self._show(record, event)

    def _note(self, record: Record, event: Event) -> None:
        talk = record.talk
        if event.name == "paused":
            record.paused()
        elif talk is not None and event.name == "summarised":
            talk.verdicts.appendleft((self.clock(), event.fields["verdict"]))
        elif talk is not None and event.name == "checkpoint_kept":
            self.noted(talk, Note.of(event.fields["checkpoint"]))

    def _show(self, record: Record, event: Event) -> None:
        """Tell the viewers of an event."""
        learned = event.fields["what"] if event.name == "refused" else event.name if event.name in _LEARNED else ""
        for each in self.watching:
            if learned:
                each.learned(record.outcome.backend, record.outcome.model, learned)
            if record.talk is not None:
                each.changed(record.talk)

    def _attach(self, record: Record, job: Job, request: Request, size: int) -> None:
        """Find the conversation that a request resumes, as soon as it was read."""
        record.attach(job, request, size)
        talk = record.talk = self._talk_of(record, job)
        records = talk.records
        if records:
            records[-1].links = ()
        records.append(record)
        talk.turns += 1
        self._talks.move_to_end(talk.id)
        if job.prompt.checkpoint is not None:
            record.sample()
            assert record.note is not None
            self.noted(talk, record.note)

    def noted(self, talk: Talk, note: Note) -> None:
        """A conversation has this checkpoint."""
        talk.notes.pop(note.digest, None)
        talk.notes[note.digest] = note
        while len(talk.notes) > HEADS:
            talk.notes.pop(next(iter(talk.notes)))

    @override
    def ended(self, outcome: Outcome) -> None:
        """Keep what is shown of a request, and let go of all else."""
        record = self._running.pop(outcome, None)
        if record is None:  # it was not let in, or is background work
            return
        record.end()
        talk = record.talk
        not_sent = self.accounts.of(outcome).add(record)
        if talk is not None:
            talk.compactions += outcome.compactions
            talk.sent += record.sent_tokens
            talk.not_sent += not_sent
            self._talks.move_to_end(talk.id)
            records = talk.records
            if records[-1] is not record:
                record.links = ()
            elif len(records) > 1:
                self._lean(records[-2], record)
        self._keep(record)
        for each in self.watching:
            each.ended(record)
            if talk is not None:
                each.changed(talk)

    # -- which conversation

    def _talk_of(self, record: Record, job: Job) -> Talk:
        """The conversation that a request goes on with, or a new one."""
        tenant, named = record.outcome.credential, record.outcome.conversation
        if named:
            keys: Sequence[bytes] = (named.encode(),)
            talk = self._heads.get((tenant, keys[0]))
        else:
            keys, talk = _ends(job), self._resumed_talk(tenant, job)
        if talk is None:
            talk = Talk(id=f"c_{unique()}", tenant=tenant, named=bool(named), first_at=record.at)
            talk.title = _title(job)
            self._talks[talk.id] = talk
        for key in keys:
            self._keep_head(talk, (tenant, key))
        return talk

    def _resumed_talk(self, tenant: str, job: Job) -> Talk | None:
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

    def _keep(self, record: Record) -> None:
        """Keep what has ended, and let go of the oldest: of requests where they alone take half of the room, and then of bodies."""
        self._ended.append(record)
        self._told += record.size
        if record.bodies is not None:
            self._bodies += record.bodies.size
        while len(self._ended) > MOST or self._told > self._limit // 2:
            self._forget(self._ended.popleft())
        while self._told + self._bodies > self._limit and self._stripped < len(self._ended):
            self._strip(self._ended[self._stripped])
            self._stripped += 1

    def _lean(self, before: Record, record: Record) -> None:
        """Keep of the bodies before this one's, which are let go of before, only what is not in these."""
        if before.running or before.bodies is None or record.bodies is None:
            return
        self._bodies -= before.bodies.lean_on(record.bodies)

    def _strip(self, record: Record) -> None:
        """Let go of a request's bodies."""
        if record.bodies is not None:
            self._bodies -= record.bodies.size
            record.bodies = None

    def _forget(self, record: Record) -> None:
        if self._stripped:
            self._stripped -= 1
        self._strip(record)
        self._told -= record.size
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


def _title(job: Job) -> str:
    first = next((message for message in job.prompt.sent if message.get("role") == "user"), {})
    words = " ".join(text_of(first)[: 8 * TITLE].split())
    return words if len(words) <= TITLE else words[: TITLE - 1] + "…"


def _first_answer(job: Job) -> int:
    """Index of the first message of a model's in the history; its length if there is none."""
    sent = job.prompt.sent
    return next((at for at, message in enumerate(sent) if message.get("role") == "assistant"), len(sent))


def _ends(job: Job) -> Sequence[bytes]:
    """The links by which what goes on with a history is found: up to the last answer in it, and to its end."""
    links, sent = job.prompt.links, job.prompt.sent
    if len(links) < 2:
        return links
    for at in range(len(sent), 0, -1):
        if sent[at - 1].get("role") == "assistant":
            return (links[at - 1], links[-1]) if at < len(sent) else links[-1:]
    return links[-1:]
