"""Archive: the messages of a conversation, stored, for clients that send only the newest of them.

What is archived of a conversation is one document: its messages, oldest first, each with the digest by which it is recognised
when it is sent again. What a client sends replaces everything from where it begins in that, so edits and deletions take effect.
The document is found by pointers, documents too, from digests of the newest messages; those of a conversation that its client
names stand apart. Without a name that is its alone more messages in a row have to be the same, because chats begin and go on alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, takewhile
from secrets import token_hex
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
"""Characters up to which a field of a message is archived too: it may tell a name, or a time."""
RUN = 3
"""Messages in a row that have to be the same for a history without such a name to go on with what is archived."""
_POINTERS = 256
"""Newest messages by which an archive is looked for."""
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


class Archivist(AddOn):
    """Archives conversations, and has what their clients no longer send recalled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._archives: WeakKeyDictionary[Outcome, _Archive] = WeakKeyDictionary()
        """Of the requests that are being served."""

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

    async def _found(self, job: Job) -> _Archive | None:
        """Find the archive that a request goes on with, or begin one; None: there is nothing to archive, or nowhere."""
        named = conversation_of(job.exchange, job.request)
        # A cache key may be that of all conversations of a client.
        exact = bool(named) and not job.request.conversation
        heavy = is_heavy(job.request.messages)
        sent = await offload_if(heavy, _entries, job)
        owner = f"{job.exchange.tenant}|archive|{named}"
        pointers, newest = _pointers(sent), [_NEWEST] if exact else []
        pointer = await self._store.document(owner, *pointers, *newest) if sent else None
        name = "" if pointer is None else str(pointer["archive"])
        document = await self._store.document(owner, name) if name else None
        if not sent or not self._store.healthy:
            return None
        archived = [] if document is None else [_Entry(*pair) for pair in document["messages"]]
        place = await offload_if(heavy, _overlap, archived, sent, 1 if exact else RUN)
        if place is None and exact and sent[0].message["role"] != "user":
            place = len(archived), 0  # a conversation that went on elsewhere for a while
        elif not exact and place is not None and not place[0] and len(archived) > len(sent):
            place = None  # another chat may begin alike, and its own archive stays
        earlier, begins = place or (0, 0)
        entries = _bounded([*archived[:earlier], *sent[begins:]])
        known = {entry.digest for entry in archived}
        return _Archive(
            owner=owner,
            name=name if name and place is not None else token_hex(16),
            # The newest message may be edited, or rewritten by its client, then the one before it leads here.
            pointers=[*pointers[:2], *newest],
            entries=entries,
            earlier=max(0, len(entries) - len(sent) + begins),
            added=sum(entry.digest not in known for entry in sent[begins:]),
            changed=place is None or [entry.digest for entry in entries] != [entry.digest for entry in archived],
        )


def _entries(job: Job) -> list[_Entry]:
    """List what user, assistant and tools said in a request, without what a client or Spillway put between."""
    request = job.request
    messages = clean_history([*request.restored, *request.messages[leading_system(request.messages) :]])
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


def _overlap(archived: Sequence[_Entry], sent: Sequence[_Entry], least: int) -> tuple[int, int] | None:
    """Find where a history that was sent begins in what is archived, and how many messages in front of that are not of it.

    None: no `least` messages in a row are in both, or, if that is more than one, not even half of those that were sent.
    """
    old, new = [entry.digest for entry in archived], [entry.digest for entry in sent]
    places: dict[str, list[int]] = {}
    for at, digest in enumerate(old):
        places.setdefault(digest, []).append(at)
    if least > 1 and 2 * sum(digest in places for digest in new) < len(new):
        return None
    found = next(filter(None, (_run(old, new, run) for run in range(RUN, least - 1, -1))), None)
    if found is None:
        return None
    start, at = found
    for begins in range(at + 1):
        # As much has to lie between two messages as was sent between them, or more, of which the rest was deleted.
        last = start - (at - begins)
        before = [place for place in places.get(new[begins], ()) if place <= last]
        if before:
            return _with_edited(archived, sent, before[-1], begins)
    return start, at


def _run(old: Sequence[str], new: Sequence[str], length: int) -> tuple[int, int] | None:
    """Find the beginnings in both of the newest run of so many that they share, and of what is the same before it."""
    known = {tuple(old[at : at + length]): at for at in range(len(old) - length + 1)}
    for at in range(len(new) - length, -1, -1):
        start = known.get(tuple(new[at : at + length]))
        if start is not None:
            pairs = zip(reversed(old[:start]), reversed(new[:at]), strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            return start - same, at - same
    return None


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
