"""Archive: stored messages of conversations, for clients that send only the newest ones.

An archive is one document: the messages of a conversation, oldest first, each with the digest that recognises it when it is sent
again. The messages of a request replace the archive from the place where they begin in it, so edits and deletions take effect.
Pointers, also documents, lead from digests of the newest messages to the archive. Conversations that the client names have pointers
of their own. Without a name of its own, a conversation may find several archives, because chats begin and go on alike. An archive
that the request repeats from its first message is the conversation's own. Otherwise the one that lacks the fewest of the request's
messages is used; if two lack equally few, neither is.
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
from proxy.core.request import Message, Request, leading_system, text_of
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome
from proxy.shaping.repair import clean_history
from proxy.store import Store

MOST_MESSAGES = 2_000
"""Most messages in one archive; the oldest are dropped first."""
MOST_BYTES = 2**20
"""Most bytes of messages in one archive, which is read and written with each request."""
_LONGEST = 200_000
"""Most characters archived of one message."""
_SHORT = 64
"""Most characters of another field that is archived with a message: it may be a name or a time."""
_TELLING = 100
"""Characters that two histories must share at least: less is said in many chats."""
# Unnamed chats with three messages in common were taken for each other, hence the further conditions in `_best`.
RUN = 3
"""Messages in a row that must match for an unnamed history to continue an archive."""
_POINTERS, _NEAR = 256, 8
"""Newest messages used to look for archives, and how many of these may each lead to a different one."""
_SHARED, _TURN = 4, 2
"""Shared messages required for each that the archive lacks, and messages of the newest turn, which it may lack freely."""
_NEWEST = "newest"
"""Name of the pointer to the archive written last under a client's name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A message and the digest that recognises it."""

    digest: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """A conversation as it will be archived now."""

    owner: str
    name: str
    pointers: Sequence[str]
    entries: Sequence[_Entry]
    earlier: int
    """Number of the first `entries` that the client no longer sends."""
    added: int
    changed: bool


_Fit: TypeAlias = tuple[str, Sequence[_Entry], tuple[int, int]]
"""An archive's name (empty for a new one), its entries, and where the request's messages begin in both (see `_overlap`)."""


class Archivist(AddOn):
    """Archives conversations, and offers recall the messages that their clients no longer send."""

    # A client that pins its first message and leaves out what follows cannot be distinguished from one whose user
    # deleted that, and counts as that.

    def __init__(self, store: Store) -> None:
        self._store = store
        self._archives: WeakKeyDictionary[Outcome, _Archive] = WeakKeyDictionary()
        """Archives by the outcome of a request that is still remembered; without entries once it is over."""

    @override
    async def enrich(self, job: Job, *, reserve: int = 0) -> None:
        """Find the conversation's archive."""
        request = job.request
        wanted = request.compaction is not None and request.compaction.now
        instructs = job.managed.hands_over or wanted or request.command is not None
        if job.settings.archive == "off" or job.background or instructs:
            return
        archive = self._archives.get(job.outcome) or await self._found(job)
        if archive is not None:
            self._archives[job.outcome] = archive
            archived = [entry.message for entry in archive.entries[: archive.earlier]]
            job.prompt = replace(job.prompt, archived=archived)

    @override
    async def before_room(self, job: Job) -> None:
        """Archive the messages of the request."""
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
        """Release the messages, and remember where they are archived."""
        if (archive := self._archives.get(job.outcome)) is not None:
            self._archives[job.outcome] = replace(archive, entries=())

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete the archives of these requests."""
        for archive in filter(None, map(self._archives.get, outcomes)):
            for name in (archive.name, *archive.pointers):
                await self._store.drop_document(archive.owner, name)

    async def _found(self, job: Job) -> _Archive | None:
        """Find the archive that a request continues, or begin one.

        Returns None if there is nothing to archive, the store is unhealthy, or two archives match equally well.
        """
        named = conversation_of(job.exchange, job.request)
        # A cache key may be shared by all conversations of a client, so it does not identify one.
        exact = bool(named) and not job.request.conversation
        sent = await offload_if(is_heavy(job.request.messages), _entries, job.request)
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
            # If the newest message is edited, or rewritten by its client, the pointer of the one before it leads here.
            pointers=[*pointers[:2], *newest],
            entries=entries,
            earlier=max(0, len(entries) - len(sent) + begins),
            added=sum(entry.digest not in known for entry in sent[begins:]),
            changed=not name or [entry.digest for entry in entries] != [entry.digest for entry in archived],
        )


def _entries(request: Request) -> list[_Entry]:
    """List the messages of user, assistant and tools in a request, without system messages and summaries among them."""
    messages = [*request.restored, *clean_history(request.messages[leading_system(request.messages) :])]
    spoken = [message for message in messages if not (is_system(message) or is_summary(message))]
    return [_Entry(message_digest(message).hex(), _archived(message)) for message in spoken]


def _archived(message: Message) -> Message:
    """Return the parts of a message that can be recalled: its text and calls, and short fields that say who wrote it and when."""
    fields = {
        name: value
        for name, value in message.items()
        if name == "tool_calls" or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _SHORT)
    }
    return {**fields, "role": message.get("role"), "content": text_of(message)[:_LONGEST]}


def _pointers(entries: Sequence[_Entry]) -> list[str]:
    """List names of pointers to the newest places in a history, newest first: digests of a message and the two before it."""
    digests = [entry.digest for entry in entries]
    first = max(0, len(digests) - _POINTERS)
    joined = ("".join(digests[max(0, end - RUN) : end]) for end in range(len(digests), first, -1))
    return [blake2b(each.encode(), digest_size=16).hexdigest() for each in joined]


def _best(candidates: Sequence[tuple[str, Sequence[_Entry]]], sent: Sequence[_Entry], exact: bool) -> _Fit | None:  # noqa: FBT001 - called in a thread
    """Choose the archive that a history continues, or None if two match equally well; `exact`: no other conversation has its name."""
    digests, fits = [entry.digest for entry in sent], list[tuple[tuple[bool, int], _Fit]]()
    for name, archived in candidates:
        old = [entry.digest for entry in archived]
        repeated, known = old == digests[: len(old)], set(old)
        place = (0, 0) if repeated else _overlap(archived, sent, 1 if exact else RUN)
        if exact and place is None and sent[0].message["role"] != "user":
            place = len(old), 0  # named alike and starting mid-conversation: some turns went past Spillway, so append
        shared = [text_of(entry.message) for entry in sent if entry.digest in known]
        new = sum(entry.digest not in known and entry.message["role"] != "tool" for entry in sent)
        # `begins_alike`: a longer archive of another chat that begins the same. `few`: too little in common to be the same chat.
        begins_alike = place is not None and not place[0] and len(old) > len(sent)
        few = sum(map(len, {*shared})) < _TELLING or new - _TURN > len(shared) / _SHARED
        if place is not None and (exact or repeated or not (begins_alike or few)):
            # Up to a turn of new messages does not count: a chat may share its latest turn with another one by chance.
            fits.append(((repeated, len(old) if repeated else min(-new, -_TURN)), (name, archived, place)))
    fits.sort(key=lambda fit: fit[0])
    doubtful = len(fits) > 1 and fits[-1][0] == fits[-2][0] and not (exact or fits[-1][0][0])
    return None if doubtful else fits[-1][1] if fits else ("", (), (0, 0))


def _overlap(archived: Sequence[_Entry], sent: Sequence[_Entry], least: int) -> tuple[int, int] | None:
    """Find where the sent history begins in the archive, and how many messages at its front come before that.

    Returns None unless at least `least` messages in a row are in both.
    """
    # Compared from the end, so that a message said many times matches its newest occurrence.
    old, new = ([entry.digest for entry in reversed(entries)] for entries in (archived, sent))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()[:-1]
    if max((size for _, _, size in blocks), default=0) < least:
        return None
    at, begins, size = blocks[-1]
    return _with_edited(archived, sent, len(old) - at - size, len(new) - begins - size)


def _with_edited(archived: Sequence[_Entry], sent: Sequence[_Entry], start: int, begins: int) -> tuple[int, int]:
    """Move the place back over edited messages: different ones, but with the same roles as those archived there."""
    if 0 < begins <= start:
        before = [entry.message["role"] for entry in archived[start - begins : start]]
        if before == [entry.message["role"] for entry in sent[:begins]]:
            return start - begins, 0
    return start, begins


def _bounded(entries: Sequence[_Entry]) -> Sequence[_Entry]:
    """Return the newest entries within the bounds of an archive, at least one."""
    newest = entries[-MOST_MESSAGES:]
    sizes = accumulate(len(dumps(entry.message)) for entry in reversed(newest))
    fitting = sum(size <= MOST_BYTES for size in sizes)
    return newest[-max(1, fitting) :]
