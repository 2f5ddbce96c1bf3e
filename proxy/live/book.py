"""Listens to what requests tell, and keeps the last of them, so that they can be looked at.

With nobody looking a request costs it a few assignments when it comes, is read and has ended, and a chunk of an answer nothing:
what happened is kept by the request's own outcome, and how far an answer has come is read off the answer itself, by whoever looks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from proxy.answer.answer import Answer
from proxy.exchange import unique
from proxy.history.checkpoint import Checkpoint
from proxy.live.record import HEADS, MOST_EVENTS, PER_EVENT, Note, Record, Talk
from proxy.live.savings import Accounts
from proxy.neutral.request import text_of
from proxy.stages.job import Job
from proxy.telemetry import events as e
from proxy.telemetry.journal import UNKEPT, Journals
from proxy.telemetry.outcome import Outcome

MOST = 1000
"""Requests that are kept, whatever their size."""
TITLE = 80
"""Characters of a conversation's title."""

_ASIDE = ("ahead", "rewrite")
"""How the names of journals begin that are kept beside a request's own; then comes its job's."""
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
            limit: bytes that all of it may take, about, without those that are being served; 0: nothing is kept.
            clock: seconds since the epoch.
            journals: who tells.
        """
        self.watching: dict[Watching, None] = {}
        self.accounts = Accounts()
        self.since = clock()
        self.clock, self.now = clock, journals.clock
        self._journals = journals
        self._stop: Callable[[], None] | None = None
        """Stops hearing what only those who look have to know."""
        self._limit = limit
        self._told = self._bodies = 0
        """Bytes that all of it takes, about, without bodies, and that these take."""
        self._number = 0
        self._running: dict[int, Record] = {}
        """By the identity of their outcomes."""
        self._ended: deque[Record] = deque()
        """As they ended."""
        self._stripped = 0
        """Of these so many of the oldest have no bodies any more."""
        self._talks: OrderedDict[str, Talk] = OrderedDict()
        """By id, the one that something happened in last at the end."""
        self._heads: dict[tuple[str, bytes], Talk] = {}
        if limit:
            journals.keeping = MOST_EVENTS
            for listener, kinds in (
                (self._begin, (e.Received,)),
                (self._taken, (e.Taken,)),
                (self._answering, (e.Answering,)),
                (self._end, tuple(_ENDS)),
                (self._noted, (e.CheckpointKept, e.Summarised, e.Paused)),
            ):
                journals.listen(listener, *kinds)
            journals.listen_aside(self._told_aside)

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
        if self._stop is None and self._limit:
            self._stop = self._journals.listen(self._seen)

    def leave(self, who: Watching) -> None:
        """Tell them no more."""
        self.watching.pop(who, None)
        if self._stop is not None and not self.watching:
            self._stop()
            self._stop = None

    # -- listening

    def _begin(self, outcome: Outcome, _: e.Received) -> None:
        self._number += 1
        self._running[id(outcome)] = Record(outcome, self._number, self.clock())

    def _seen(self, outcome: Outcome, event: e.Event) -> None:
        """Tell those who look; after this book's own taking down, and of an end when that is done."""
        record = self._running.get(id(outcome))
        if record is None or type(event) in _ENDS:
            return
        self._learned(outcome, event)
        if record.talk is not None:
            self._changed(record.talk)

    def _changed(self, talk: Talk) -> None:
        for each in self.watching:
            each.changed(talk)

    def _noted(self, outcome: Outcome, event: e.CheckpointKept | e.Summarised | e.Paused) -> None:
        """Something happened of which the outcome does not keep all that is told."""
        record = self._running.get(id(outcome))
        if record is not None:
            self._note(record, event)

    def _note(self, record: Record, event: e.Event) -> None:
        talk = record.talk
        if isinstance(event, e.Paused):
            record.paused()
        elif talk is None:
            return
        elif isinstance(event, e.Summarised):
            talk.verdicts.appendleft((self.clock(), event.verdict))
        elif isinstance(event, e.CheckpointKept) and isinstance(event.checkpoint, Checkpoint):
            self.noted(talk, Note.of(event.checkpoint))

    def _told_aside(self, outcome: Outcome, event: e.Event) -> None:
        """What is done for a conversation that no client waits for, or of one that came before this began."""
        kind, _, name = outcome.id.partition("_")
        known = self.records() if kind in _ASIDE else ()
        own = (each for each in known if each.unique == name and each.tenant == outcome.credential)
        record = next(own, None)
        if isinstance(event, e.Summarised):
            self.accounts.of(outcome).spent += event.tokens
        elif isinstance(event, e.CompactedAhead):
            self.accounts.of(outcome).ahead += event.seconds
        if record is None or record.talk is None:
            return
        self._note(record, event)
        self._learned(outcome, event)
        story = record.outcome.story
        if len(story) < MOST_EVENTS and type(event) not in UNKEPT:
            story.append((self.now(), event))
            self._told += 0 if record.running else PER_EVENT
        self._changed(record.talk)

    def _answering(self, outcome: Outcome, event: e.Answering) -> None:
        """There is an answer to be watched."""
        record = self._running.get(id(outcome))
        if record is not None and isinstance(event.answer, Answer):
            record.answer = event.answer

    def _taken(self, outcome: Outcome, event: Any) -> None:
        """It is known what it asks, and so whose conversation it goes on with."""
        record = self._running.get(id(outcome))
        if record is None:
            return
        job: Job = event.job
        record.taken(job, event.request, event.size)
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

    def _learned(self, outcome: Outcome, event: e.Event) -> None:
        what = event.what if isinstance(event, e.Refused) else _LEARNED.get(type(event))
        if what is not None:
            for each in self.watching:
                each.learned(outcome.backend, outcome.model, what)

    def _end(self, outcome: Outcome, _: e.Finished | e.Failed) -> None:
        record = self._running.pop(id(outcome), None)
        if record is None:  # it was not let in, or came before this began
            return
        record.end()
        talk = record.talk
        not_sent = self.accounts.of(outcome).add(record)
        if talk is not None:
            talk.compactions += outcome.compactions
            talk.sent += record.asked
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
            keys, talk = _ends(job), self._begun(tenant, job)
        if talk is None:
            talk = Talk(id=f"c_{unique()}", tenant=tenant, named=bool(named), first_at=record.at)
            talk.title = _title(job)
            self._talks[talk.id] = talk
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
