"""Archive: the messages of a conversation, stored, for clients that send only the newest of them.

What is archived of a conversation is one document: its messages, oldest first, each with the digest by which it is recognised
when it is sent again. What a client sends replaces everything from where it begins in that, so edits and deletions take effect.
The document is found by pointers, documents too, from digests of the newest messages; those of a conversation that its client
names stand apart. Without a name that is its alone several may be found, because chats begin and go on alike: one that begins
as what is sent does is its own, else that which knows it farthest; where two do, nothing is brought back from either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import accumulate
from secrets import token_hex
from typing import TypeAlias
from weakref import WeakKeyDictionary

from typing_extensions import override

from proxy.addon import AddOn
from proxy.conversation_state import conversation_of
from proxy.core.history.checkpoint import message_digest
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import is_system
from proxy.core.jsontext import dumps, is_heavy
from proxy.core.request import Message, leading_system, text_of
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome
from proxy.shaping.repair import clean_history
from proxy.store import Store

MOST_MESSAGES = 2_000
"""Messages that are archived of one conversation; of more the oldest go."""
MOST_BYTES = 2**20
"""The same in bytes: it is read and written with each request."""
_LONGEST = 200_000
"""Characters of one message that are archived."""
_SHORT = 64
"""Characters up to which a field of a message is archived too, which may tell a name, or a time."""
_TELLING = 100
"""Characters that are the same in two histories and no more than what is said in many."""
RUN = 3
"""Messages in a row that have to be the same for a history without such a name to go on with what is archived."""
_POINTERS, _NEAR = 256, 8
"""Newest messages by which an archive is looked for, and those of them that each may lead to another one."""
_SHARED, _TURN = 4, 2
"""Messages that are the same for each that an archive lacks, but for those of the newest turn."""
_NEWEST = "newest"
"""Name of the pointer to what was archived last under a client's name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A message, and the digest by which it is recognised."""

    digest: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """A conversation as it is to be archived now."""

    owner: str
    name: str
    pointers: Sequence[str]
    entries: Sequence[_Entry]
    earlier: int
    """How many of these the client no longer sends."""
    added: int
    changed: bool


_Fit: TypeAlias = tuple[str, Sequence[_Entry], tuple[int, int]]
"""An archive's name, empty for a new one, its entries, and where what was sent begins in both (see `_overlap`)."""


class Archivist(AddOn):
    """Archives conversations, and has what their clients no longer send recalled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._archives: WeakKeyDictionary[Outcome, _Archive] = WeakKeyDictionary()
        """Of the requests that are remembered; without entries once they are over."""

    @override
    async def enrich(self, job: Job, *, reserve: int = 0) -> None:
        """Find what is archived of the conversation."""
        compaction = job.request.compaction
        instructs = job.managed.hands_over or (compaction is not None and compaction.now)
        if job.settings.archive == "off" or job.background or instructs:
            return
        archive = self._archives.get(job.outcome) or await self._found(job)
        if archive is not None:
            self._archives[job.outcome] = archive
            job.prompt.archived = [entry.message for entry in archive.entries[: archive.earlier]]

    @override
    async def before_room(self, job: Job) -> None:
        """Archive what the client sent."""
        archive = self._archives.get(job.outcome)
        if archive is None or not archive.changed:
            return
        messages = [[entry.digest, entry.message] for entry in archive.entries]
        await self._store.put_document(archive.owner, archive.name, {"messages": messages})
        for pointer in archive.pointers:
            await self._store.put_document(archive.owner, pointer, {"archive": archive.name})
        job.outcome.add("archived", messages=archive.added)

    @override
    def after_answer(self, job: Job) -> None:
        """Remember no more than where it is archived."""
        if (archive := self._archives.get(job.outcome)) is not None:
            self._archives[job.outcome] = replace(archive, entries=())

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete the archives of these requests."""
        for archive in filter(None, map(self._archives.get, outcomes)):
            for name in (archive.name, *archive.pointers):
                await self._store.drop_document(archive.owner, name)

    async def _found(self, job: Job) -> _Archive | None:
        """Find the archive that a request goes on with, or begin one; None: there is nothing to archive, or nowhere."""
        named = conversation_of(job.exchange, job.request)
        # A cache key may be that of all conversations of a client.
        exact = bool(named) and not job.request.conversation
        sent = await offload_if(is_heavy(job.request.messages), _entries, job)
        owner = f"{job.exchange.tenant}|archive|{named}"
        pointers, newest = _pointers(sent), [_NEWEST] if exact else []
        places = *((each,) for each in pointers[:_NEAR]), (*pointers[_NEAR:], *newest)
        led = [await self._store.document(owner, *place) for place in places]
        candidates = [
            (name, [_Entry(*pair) for pair in document["messages"]])
            for name in dict.fromkeys(each["archive"] for each in led if each is not None)
            if (document := await self._store.document(owner, name)) is not None
        ]
        if not sent or not self._store.healthy:
            return None
        fit = await offload_if(True, _best, candidates, sent, exact)
        if fit is None:
            return None
        name, archived, (earlier, begins) = fit
        entries = _bounded([*archived[:earlier], *sent[begins:]])
        known = {entry.digest for entry in archived}
        return _Archive(
            owner=owner,
            name=name or token_hex(16),
            # The newest message may be edited, or rewritten by its client, then the one before it leads here.
            pointers=[*pointers[:2], *newest],
            entries=entries,
            earlier=max(0, len(entries) - len(sent) + begins),
            added=sum(entry.digest not in known for entry in sent[begins:]),
            changed=not name or [entry.digest for entry in entries] != [entry.digest for entry in archived],
        )


def _entries(job: Job) -> list[_Entry]:
    """List what user, assistant and tools said in a request, without what a client or Spillway put between."""
    request = job.request
    messages = [*request.restored, *clean_history(request.messages[leading_system(request.messages) :])]
    spoken = [message for message in messages if not (is_system(message) or is_summary(message))]
    return [_Entry(message_digest(message).hex(), _archived(message)) for message in spoken]


def _archived(message: Message) -> Message:
    """Return what can be recalled of a message: its text and calls, and what tells who wrote it and when."""
    fields = {
        name: value
        for name, value in message.items()
        if name == "tool_calls" or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _SHORT)
    }
    return {**fields, "role": message.get("role"), "content": text_of(message)[:_LONGEST]}


def _pointers(entries: Sequence[_Entry]) -> list[str]:
    """List names for the newest places in a history, newest first: each is of a message and the two before it."""
    digests = [entry.digest for entry in entries]
    first = max(0, len(digests) - _POINTERS)
    joined = ("".join(digests[max(0, end - RUN) : end]) for end in range(len(digests), first, -1))
    return [blake2b(each.encode(), digest_size=16).hexdigest() for each in joined]


def _best(candidates: Sequence[tuple[str, Sequence[_Entry]]], sent: Sequence[_Entry], exact: bool) -> _Fit | None:  # noqa: FBT001 - called in a thread
    """Choose the archive that a history goes on with; `exact`: its name is the conversation's alone. None: it may be either of two."""
    digests, fits = [entry.digest for entry in sent], list[tuple[tuple[bool, int], _Fit]]()
    for name, archived in candidates:
        old = [entry.digest for entry in archived]
        own, known = old == digests[: len(old)], set(old)
        place = (0, 0) if own else _overlap(archived, sent, 1 if exact else RUN)
        if exact and place is None and sent[0].message["role"] != "user":
            place = len(old), 0  # it went on elsewhere for a while
        shared = [text_of(entry.message) for entry in sent if entry.digest in known]
        new = sum(entry.digest not in known and entry.message["role"] != "tool" for entry in sent)
        # Another chat may begin alike, and its own archive stays; or it has said the same somewhere.
        alike = place is not None and not place[0] and len(old) > len(sent)
        few = sum(map(len, {*shared})) < _TELLING or new - _TURN > len(shared) / _SHARED
        if place is not None and (exact or own or not (alike or few)):
            # What came since its last request, another chat may have had by chance.
            fits.append(((own, len(old) if own else min(-new, -_TURN)), (name, archived, place)))
    fits.sort(key=lambda fit: fit[0])
    doubtful = len(fits) > 1 and fits[-1][0] == fits[-2][0] and not (exact or fits[-1][0][0])
    return None if doubtful else fits[-1][1] if fits else ("", (), (0, 0))


def _overlap(archived: Sequence[_Entry], sent: Sequence[_Entry], least: int) -> tuple[int, int] | None:
    """Find where a history that was sent begins in what is archived, and how many messages in front of that are not of it.

    None: no `least` messages in a row are in both.
    """
    # From the end: what is said again and again is the newest of its kind.
    old, new = ([entry.digest for entry in reversed(entries)] for entries in (archived, sent))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()[:-1]
    if max((size for _, _, size in blocks), default=0) < least:
        return None
    at, begins, size = blocks[-1]
    return _with_edited(archived, sent, len(old) - at - size, len(new) - begins - size)


def _with_edited(archived: Sequence[_Entry], sent: Sequence[_Entry], start: int, begins: int) -> tuple[int, int]:
    """Go back over messages that were edited, which stand where others of the same speakers stood."""
    if 0 < begins <= start:
        before = [entry.message["role"] for entry in archived[start - begins : start]]
        if before == [entry.message["role"] for entry in sent[:begins]]:
            return start - begins, 0
    return start, begins


def _bounded(entries: Sequence[_Entry]) -> Sequence[_Entry]:
    """Return the newest of these that may be archived; at least one."""
    newest = entries[-MOST_MESSAGES:]
    sizes = accumulate(len(dumps(entry.message)) for entry in reversed(newest))
    fitting = sum(size <= MOST_BYTES for size in sizes)
    return newest[-max(1, fitting) :]
