"""Memory of users: what they say of themselves is kept, and comes into their other conversations when a message needs it.

A key vouches for the users that its holder names; nobody gets anything of another key's users. The memory of a user is one document,
a list of statements in the order in which they were said. A place is where one was said: the conversation, and what came before it
there. Whatever fails, a request goes on without: nothing is kept then, and nothing is brought.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from typing_extensions import override

from proxy.addon import AddOn, Command, MakeRoom
from proxy.core.errors import plural
from proxy.core.history.marks import RECALLED_END, REMEMBERED
from proxy.core.history.turns import newest_user
from proxy.core.request import text_of
from proxy.counting import Counting
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome
from proxy.recall.block import Block, found_text
from proxy.recall.ranking import query_of
from proxy.recall.statements import needed, statements_in, told_by, unfit
from proxy.recall.words import terms
from proxy.store import Store

MOST = 200
"""Most statements of one user; the one that was used least lately goes first."""
_ROOM = 240.0
"""Most tokens of the statements brought into one prompt."""
_SAYS = "🗂️ Memory:"
"""Beginning of the answers to commands, by which they are recognised when a client sends them back."""
_NOBODY = (
    f"{_SAYS} nothing is kept here, or it is not known who you are. Open WebUI has to send that, from a saved chat."
)
_FAILS = f"{_SAYS} the store does not answer. Nothing was changed for certain; try again later."

Remembered: TypeAlias = dict[str, Any]
"""`id`, `text`, its terms (`key`), `kind` (see `told_by`), `said` and `used` (seconds since the epoch), `near` (whether the backend was), `place` and `link` there."""
User: TypeAlias = tuple[str, str]
"""Owner of a key's memories, and the name that the key's holder gives a user, empty for the holder: the place of a document."""


@dataclass(slots=True)
class _Turn:
    """Changes to a memory, made once it is certain that the request is served."""

    user: User
    known: list[Remembered] = field(default_factory=list)
    told: list[Remembered] = field(default_factory=list)
    place: str = ""
    brought: Sequence[str] = ()


class UserMemory(AddOn):
    """Keeps statements of users, brings them into other conversations, and obeys `/remember` and `/forget`."""

    def __init__(self, counting: Counting, store: Store, clock: Callable[[], float]) -> None:
        self._counting, self._store, self._clock = counting, store, clock
        self._turns: WeakKeyDictionary[Outcome, _Turn] = WeakKeyDictionary()
        self.commands = {"/remember": Command(self._remember, (_SAYS,)), "/forget": Command(self._forget, (_SAYS,))}

    @override
    async def enrich(self, job: Job, *, reserve: int = 0) -> None:
        """Find what the newest message tells, and put the statements that it needs in front of it."""
        sent, links, user = job.prompt.sent, job.prompt.links, _user_of(job)
        newest, placed = newest_user(sent), newest_user(job.prompt.history)
        odd = job.request.command is not None or job.ahead or job.undisturbed or job.managed.hands_over
        if user is None or odd or newest is None or placed is None or (known := await self.read(user)) is None:
            return
        near, named = job.route.upstream.near, job.outcome.conversation
        turn = self._turns[job.outcome] = _Turn(user, known)
        turn.place = f"{named}|{links[newest - 1].hex() if newest else ''}" if named else ""
        found = await offload_if(True, lambda: [*statements_in(job.prompt.system, sent[newest])])
        turn.told = [self._statement(*each, near, turn.place, links[newest].hex()) for each in found]
        usable = [each for each in known if near >= each["near"]]  # what was said to a backend nearby stays nearby
        before = job.prompt.recalled.blocks.get(placed, Block("", (), 0.0))
        if usable and job.budget is not None and not before.text.startswith(REMEMBERED):
            room = min(_ROOM, job.room - reserve)
            text, turn.brought = await offload_if(True, self._chosen, job, usable, newest, room)
            if text:
                tokens = self._counting.meter.count_text(job.key, text) + before.tokens
                block = Block("\n\n".join(filter(None, (text, before.text))), before.passages, tokens)
                blocks = {**job.prompt.recalled.blocks, placed: block}
                recalled = replace(job.prompt.recalled, blocks=blocks, newest=block)
                job.prompt = replace(job.prompt, recalled=recalled)
                job.outcome.sent.recalled_tokens = recalled.newest_tokens
                await self._counting.recount(job)

    def _chosen(self, job: Job, known: Sequence[Remembered], newest: int, room: float) -> tuple[str, list[str]]:
        """Choose the statements that a message needs; return a block of them, which is empty without any, and their texts."""
        messages = [{"role": "user", "content": each["text"], "day": _day(each)} for each in known]
        here, cost = "\n".join(map(text_of, job.prompt.conversation)), partial(self._counting.meter.count_text, job.key)
        query = query_of(job.prompt.sent, newest)
        found = needed(messages, query, room=room, cost=cost, here=here.__contains__) if query.terms else []
        text = f"{REMEMBERED}\n{found_text(messages, found)}\n{RECALLED_END}" if found else ""
        return text, [each.text for each in found]

    def _statement(self, kind: str, text: str, near: bool, place: str = "", link: str = "") -> Remembered:  # noqa: FBT001 - a field
        now, key = self._clock(), " ".join(terms(text))
        when = {"said": now, "used": now, "id": token_hex(8)}
        return {"text": text, "key": key, "kind": kind, **when, "near": near, "place": place, "link": link}

    @override
    async def before_room(self, job: Job) -> None:
        """Keep what the newest message tells."""
        if (turn := self._turns.get(job.outcome)) is not None:
            edit = partial(_renewed, turn=turn, now=self._clock(), ttl=job.settings.store_ttl)
            if await offload_if(True, edit, turn.known) != turn.known:
                await self.change(turn.user, edit)
            if turn.told or turn.brought:
                job.outcome.add("remembered", told=len(turn.told), brought=len(turn.brought))

    async def _remember(self, job: Job, words: str, _: MakeRoom) -> str:
        """Keep a statement, or without one list all; return what became of that."""
        if (user := _user_of(job)) is None:
            return _NOBODY
        if not words:
            known = await self.read(user)
            lines = "".join(f"\n- {each['text']} ({_day(each)})" for each in known or ())
            return _FAILS if known is None else f"{_SAYS}{lines or ' it is empty.'}"
        if unfit(words):
            return (
                f"{_SAYS} not remembered. A statement is short, holds no secret or private number, and is not a rule."
            )
        told = [self._statement(told_by(words) or "", words, job.route.upstream.near)]
        gone = await self.change(
            user, partial(_renewed, turn=_Turn(user, told=told), now=self._clock(), ttl=job.settings.store_ttl)
        )
        return _FAILS if gone is None else f"{_SAYS} remembered."

    async def _forget(self, job: Job, words: str, _: MakeRoom) -> str:
        """Delete the statements that have all of these words, or all statements; return what became of that."""
        if (user := _user_of(job)) is None:
            return _NOBODY
        wanted = {*terms(words)}
        kept = partial(filter, lambda each: words != "all" and not (wanted and wanted <= {*terms(each["text"])}))
        gone = await self.change(user, lambda known: [*kept(known)])
        return _FAILS if gone is None else f"{_SAYS} {plural(gone, 'statement')} forgotten."

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete what was said in a conversation."""
        turns = [*filter(None, map(self._turns.get, outcomes))]
        gone = {link.hex() for link in links} | {each["link"] for turn in turns for each in turn.told}
        for user in {turn.user for turn in turns}:
            await self.change(user, lambda known: [each for each in known if each["link"] not in gone])

    async def read(self, user: User) -> list[Remembered] | None:
        """Return what is remembered of a user, or None if the store fails."""
        found = await self._store.document(*user)
        return found["statements"] if found is not None else [] if self._store.healthy else None

    async def change(self, user: User, edit: Callable[[list[Remembered]], list[Remembered]]) -> int | None:
        """Change what is remembered of a user; return by how many statements it shrank, or None if the store fails."""
        async with self._store.claim("|".join(user), seconds=1.0):
            if (known := await self.read(user)) is None or (new := edit(known)) == known:
                return None if known is None else 0
            if not {each["text"] for each in known} <= {each["text"] for each in new}:
                await self._store.drop_document(*user)  # overwrites it, in the database's log too
            if new:
                await self._store.put_document(*user, {"statements": new})
            return len(known) - len(new) if self._store.healthy else None


def owner_of(tenant: str) -> str:
    """Return the owner of the memories of a key."""
    return f"{tenant}|memory"


def _user_of(job: Job) -> User | None:
    """Return the user that a key vouches for; None for nobody, several names, and Open WebUI's temporary chats and channels.

    Its ids of temporary chats (`local:`), and of channels, where several users speak, have a colon.
    """
    exchange, names = job.exchange, job.exchange.values(b"x-openwebui-user-id")
    owner = owner_of(exchange.tenant)
    if job.settings.memory == "off" or not (exchange.tenant and exchange.trusted) or len(names) > 1:
        return None
    if not names:  # Open WebUI signs the name if it is told to, which proves no more than a key of its own
        signs = exchange.header(b"x-openwebui-user-jwt") is not None
        return (owner, "") if job.settings.memory == "key" and not signs else None
    is_saved = ":" not in (exchange.header(b"x-openwebui-chat-id") or ":")
    return (owner, names[0].decode("latin-1")) if names[0] and is_saved else None


def _renewed(known: list[Remembered], turn: _Turn, now: float, ttl: float) -> list[Remembered]:
    """Return a memory with what a turn tells, without what that replaces, and without what was not used for `ttl` seconds."""
    here = {(each["key"], each["place"]) for each in turn.told}
    told = [
        each for each in turn.told if (each["key"], each["place"]) not in {(old["key"], old["place"]) for old in known}
    ]
    keys, kinds = {each["key"] for each in told}, {each["kind"] for each in told} - {""}
    left = [
        {**each, "used": now} if each["text"] in turn.brought else each
        for each in known
        if each["key"] not in keys and each["kind"] not in kinds and now - each["used"] <= ttl
        # A message that is edited no longer tells what it told before.
        if not turn.place or each["place"] != turn.place or (each["key"], turn.place) in here
    ]
    least = sorted(left, key=lambda each: each["used"])[: max(0, len(left) + len(told) - MOST)]
    return [*(each for each in left if each not in least), *told]


def _day(each: Remembered) -> str:
    return datetime.fromtimestamp(each["said"], UTC).date().isoformat()
