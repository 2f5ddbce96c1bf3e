"""Slots of llama.cpp's llama-server: a conversation stays in its own, and what gives way is saved to disk and restored.

It works where the server was started with `--slot-save-path`, else the server chooses: a request that names its slot does
without what the server moved to memory (`--cache-ram`; measured, b11549). So it chooses too where its memory may hold what no
slot and no file does. The server can't delete files: a bounded set of names is overwritten, and what was purged, with an
empty slot.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.base import SlotAction, SlotDone, SlotState
from proxy.backends.profile import ModelKey
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import dumps
from proxy.core.piece import as_count
from proxy.dialects.chat.request import SLOT
from proxy.job import Job
from proxy.net.tasks import spawn
from proxy.outcome import Outcome
from proxy.routing import Route
from proxy.store import Store

_log = logging.getLogger("spillway.slots")

QUIET = 10.0
"""Seconds without a request in a slot after which it is saved: a save holds up all slots, and writes all of its prompt."""
MOST_BYTES = 16 * 2**30
"""Bytes on disk for one model of one backend; the longest unused conversations go first."""
MOST_FILES = 64
LEAST = 128
"""Tokens that are worth a file."""
CLOSE = 16
"""Tokens by which a slot may differ from what the usage of its last answer says, and still hold that."""
IN_VAIN = 2
"""Saves refused, or prompts restored and read anew all the same, after which the server is left alone."""
FREE_SLOT = "⏳ Waiting for a free slot"
_OWNER = "slots"
"""Owner of the list of files in the store."""


@dataclass(slots=True)
class _Slot:
    """What one slot holds, as far as it was filled through here."""

    number: int
    job: Job | None = None
    """Which runs in it."""
    scope: str = ""
    links: Sequence[bytes] = ()
    """Chain of the history in it, and the link where its newest turn begins; empty: it holds nothing that is known."""
    stem: bytes = b""
    checkpoint: str = ""
    opening: int = 0
    """Of its system messages and tools, which conversations of one program share; 0: none."""
    tokens: int | None = None
    """It holds; None: not known."""
    used: float = 0.0
    saved: bool = True

    @property
    def taken(self) -> bool:
        """Return whether a request runs in it; one that has left may have a summary written for others."""
        return self.job is not None and not self.job.outcome.seconds

    def take(self, job: Job, now: float) -> None:
        """Have a job run in it; for one that is done ahead of its request, other jobs do not wait."""
        links = job.prompt.links
        self.job, self.saved = (None, False) if job.expected else (job, True)
        self.scope, self.links, self.tokens, self.used = job.scope, links, None, now
        self.stem, self.checkpoint = links[(newest_user(job.prompt.sent) or 1) - 1], _digest_of(job)
        self.opening = _opening_of(job)


@dataclass(slots=True)
class _Engine:
    """The slots of one model, and the files that are written for it."""

    name: str
    """Of the list of files in the store."""
    route: Route
    """By which it was reached last."""
    slots: list[_Slot]
    files: dict[str, dict[str, Any]]
    """By name, the longest unused first: scope, links in hexadecimal, checkpoint, bytes and the server's run."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has left its slot."""
    run: int = 0
    """Counts the starts of the server that were noticed, and the times that its memory had lost what was saved."""
    newest: int = -1
    """Its newest task."""
    clears: bool = False
    """Whether it moves idle slots to memory when another one begins to work (`--cache-idle-slots`, its default)."""
    vain: int = 0
    read_pace: float = 1.0
    restore_pace: float = 0.0
    """Seconds that a token takes to be read, or to be restored."""

    async def act(self, action: SlotAction, slot: _Slot, file: str = "") -> SlotDone | None:
        """Have the server act on a slot; None: it was refused."""
        prober = self.route.prober
        return await prober.runner.run(prober.known_backend.use_slot(self.route.model, action, slot.number, file))

    def slot_of(self, job: Job) -> _Slot | None:
        """Return the slot in which a job's request runs, or a summary for it."""
        return next((each for each in self.slots if each.job is not None and each.job.outcome is job.outcome), None)

    def compare(self, seen: Sequence[SlotState]) -> None:
        """Forget what slots do not hold any more."""
        newest = max((each.task for each in seen), default=-1)
        self.run += newest < self.newest
        self.newest = newest
        if len(seen) != len(self.slots):
            self.slots = [_Slot(number) for number in range(len(seen))]
        for slot, each in zip(self.slots, seen, strict=True):
            if not (slot.taken or each.busy) and abs(each.tokens - (slot.tokens or each.tokens or LEAST)) > CLOSE:
                self.clears |= bool(slot.tokens) and not each.tokens and each.task >= 0
                slot.stem, slot.saved = b"", True

    def saved_prefix(self, job: Job) -> str:
        """Return the file with the longest beginning of a job's prompt; empty: none has any."""
        places = {link.hex(): at for at, link in enumerate(job.prompt.links)}
        found = [
            (max(places.get(link, -1) for link in each["links"]), name)
            for name, each in self.files.items()
            if each["scope"] == job.scope and each["checkpoint"] == _digest_of(job) and places.keys() & each["links"]
        ]
        return max(found, default=(0, ""))[1]

    def file_for(self, slot: _Slot) -> str:
        """Return the file of the conversation in a slot, else the next one of its credential; it tells nobody whose it is."""
        links = {link.hex() for link in slot.links}
        mine = (name for name, each in self.files.items() if each["scope"] == slot.scope and links & {*each["links"]})
        owner = blake2b(slot.scope.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        names = (f"spillway-{owner}-{number}.slot" for number in count())
        return next(mine, "") or next(name for name in names if name not in self.files)


class SlotKeeper(AddOn):
    """Chooses the slot of each prompt. For one process: another one that shares the server chooses for itself."""

    def __init__(self, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives monotonic seconds."""
        self._store, self._now = store, now
        self._engines: dict[ModelKey, _Engine] = {}

    @override
    async def place(self, job: Job) -> None:
        """Choose a slot, save what is in it, and restore what was saved of the job's conversation."""
        if not job.prompt.links or SLOT in job.request.body or (engine := await self._engine(job)) is None:
            return
        job.state.waits_for, job.state.vacate = "", partial(self._vacate, job, engine)
        while True:
            async with engine.lock:
                engine.freed.clear()
                slot = engine.slot_of(job) or await self._choose(engine, job)
                if slot is not None:
                    slot.take(job, self._now())
            if slot is not None or job.expected or not all(each.taken for each in engine.slots):
                break
            await engine.freed.wait()  # the server would put it into any slot
        job.prompt.fields.pop(SLOT, None)
        if slot is not None and len(engine.slots) > 1:
            job.prompt.fields[SLOT] = slot.number

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Empty the files of a conversation that a viewer deletes, now if a slot is free for that, and save it no more."""
        for engine in self._engines.values():
            async with engine.lock:
                for slot in engine.slots:
                    slot.stem = b"" if slot.scope == scope and slot.stem in links else slot.stem
                for each in engine.files.values():
                    gone = each["scope"] == scope and not {link.hex() for link in links}.isdisjoint(each["links"])
                    each["links"] = [] if gone else each["links"]
                await self._store.put_document(_OWNER, engine.name, engine.files)
                if free := await self._free(engine, engine.route):
                    slot = min(free, key=lambda each: (each.stem != b"", each.used))
                    await self._save(engine, slot)
                    await self._empty_surplus(engine, slot)

    def _vacate(self, job: Job, engine: _Engine) -> None:
        """Free the slot, and save it when it has been quiet."""
        outcome, usage = job.outcome, job.outcome.usage or {}
        slot = engine.slot_of(job)
        engine.freed.set()
        prompt, reused = as_count(usage.get("prompt_tokens")), outcome.reused or 0
        tokens = prompt + as_count(usage.get("completion_tokens")) - 1
        lasts = prompt > 0 and outcome.error is None and not job.background and not outcome.pauses
        if slot is not None:
            slot.job, slot.used, slot.saved = None, 0.0 if job.background else self._now(), not lasts
            slot.tokens = tokens if lasts else None
            if lasts and any(each["tokens"] >= 2 * LEAST for each in outcome.each("slot_restored")):
                engine.vain = engine.vain + 1 if reused < LEAST else 0
        elif lasts and reused < LEAST and engine.saved_prefix(job):
            engine.run += 1  # its memory, which is bounded, holds less than the files
        if prompt - reused > LEAST and outcome.first_byte is not None:
            engine.read_pace = outcome.first_byte / (prompt - reused)
        if lasts and tokens >= LEAST and engine.vain < IN_VAIN:
            spawn(self._save_when_quiet(job, engine, slot, tokens), name="slot")

    async def _save_when_quiet(self, job: Job, engine: _Engine, slot: _Slot | None, tokens: int) -> None:
        if slot is None:  # the server chose it
            async with engine.lock:
                seen = await self._look(engine, job.route)
                number = next((at for at, each in enumerate(seen) if not each.busy and each.tokens == tokens), None)
                if number is None or (slot := engine.slots[number]).taken:
                    return
                slot.take(job, self._now())
                slot.job, slot.tokens, slot.saved = None, tokens, False
        used, busy = slot.used, True
        while busy:
            await asyncio.sleep(QUIET)
            busy = any(each.taken for each in engine.slots)
        async with engine.lock:
            if slot.used == used and not slot.taken:
                await self._look(engine, job.route)
                await self._save(engine, slot)
                await self._empty_surplus(engine, slot)

    # -- one engine; its lock is held

    async def _choose(self, engine: _Engine, job: Job) -> _Slot | None:
        """Return the slot that holds a job's conversation, else the longest unused one; None: the server chooses."""
        free = await self._free(engine, job.route)
        job.state.waits_for = FREE_SLOT if free == [] else ""
        if not free:
            return None
        going_on = [each for each in free if each.scope == job.scope and each.stem in job.prompt.links]
        # It is resumed, repeated or edited; what was read ahead may be in another slot than the turn before it.
        own = max(going_on, key=lambda each: (each.checkpoint == _digest_of(job), each.used), default=None)
        if name := engine.saved_prefix(job):
            engine.files[name] = engine.files.pop(name)  # it is used last
        # The server may have it in memory, or it is new where it would clear the slot all the same.
        in_memory = engine.clears if name else engine.clears or bool(newest_user(job.prompt.sent))
        left = own is None and in_memory and (not name or engine.files[name]["run"] == engine.run)
        for slot in free if engine.clears or left else ():
            if slot is not own:
                await self._save(engine, slot)
        if own is not None or left:
            return own
        opening = 0 if name else _opening_of(job)
        slot = min(free, key=lambda each: (not opening or each.opening != opening, each.used))
        await self._save(engine, slot)
        await self._empty_surplus(engine, slot, stays=False)
        if name not in engine.files or engine.restore_pace >= engine.read_pace:
            return slot
        done, found = await engine.act("restore", slot, name), engine.files.pop(name)
        if done is not None and done.tokens:
            engine.files[name], engine.restore_pace = found | {"run": engine.run}, done.seconds / done.tokens
            job.outcome.add("slot_restored", tokens=done.tokens)
        return slot

    async def _save(self, engine: _Engine, slot: _Slot) -> None:
        """Save a slot, and note where it is."""
        if slot.saved or not slot.stem:
            return
        slot.saved, name = True, engine.file_for(slot)
        done = await engine.act("save", slot, name)
        engine.vain += done is None
        engine.files.pop(name, None)
        if done is not None:
            links = [slot.stem.hex(), slot.links[-1].hex()]
            place: dict[str, Any] = {"scope": slot.scope, "links": links, "checkpoint": slot.checkpoint}
            engine.files[name] = {**place, "bytes": done.bytes, "run": engine.run}
        elif engine.vain >= IN_VAIN:
            _log.warning(
                "the slots of %s can't be saved, so they are left to the server: see its log, and the room in --slot-save-path",
                engine.route.model,
            )
        await self._store.put_document(_OWNER, engine.name, engine.files)

    async def _empty_surplus(self, engine: _Engine, slot: _Slot, *, stays: bool = True) -> None:
        """Overwrite files that are to go with a slot that is erased, and, if what was in it stays, restore that."""
        size, number, surplus = sum(each["bytes"] for each in engine.files.values()), len(engine.files), list[str]()
        for name, each in engine.files.items():
            if not each["links"] or not (stays or (size <= MOST_BYTES and number <= MOST_FILES)):
                surplus.append(name)
                size, number = size - each["bytes"], number - 1
        if not surplus or await engine.act("erase", slot) is None:
            return
        for name in surplus:
            if await engine.act("save", slot, name) is not None:
                del engine.files[name]
        if stays and slot.stem and await engine.act("restore", slot, engine.file_for(slot)) is None:
            slot.stem = b""
        await self._store.put_document(_OWNER, engine.name, engine.files)

    async def _free(self, engine: _Engine, route: Route) -> list[_Slot] | None:
        """List the slots in which nothing runs; None: they can't be read now."""
        seen = await self._look(engine, route)
        free = (slot for slot, each in zip(engine.slots, seen, strict=False) if not (slot.taken or each.busy))
        return [*free] if seen else None

    async def _look(self, engine: _Engine, route: Route) -> Sequence[SlotState]:
        """Read the slots, and whether the store was purged; empty: they can't be read now."""
        seen = await route.prober.runner.run(route.prober.known_backend.slots(route.model))
        if seen:
            engine.route = route
            engine.compare(seen)
        if await self._store.document(_OWNER, engine.name) is None and self._store.healthy:
            for slot in engine.slots:
                slot.saved = True
            engine.files = {name: each | {"links": []} for name, each in engine.files.items()}
            await self._store.put_document(_OWNER, engine.name, engine.files)
        return seen

    async def _engine(self, job: Job) -> _Engine | None:
        """Return the slots of the job's model; None: it saves none, or they can't be read now."""
        engine, backend, runner = self._engines.get(job.key), job.known_backend, job.route.prober.runner
        if engine is None:
            saves = await runner.run(backend.saves_slots(job.route.model))
            job.route.known.has_places = saves is not False
            if saves and (seen := await runner.run(backend.slots(job.route.model))):
                name = f"{job.route.upstream.name}|{job.route.model}"
                files = await self._store.document(_OWNER, name) or {}
                known = {file: each | {"run": -1} for file, each in files.items()}
                slots = [_Slot(number) for number in range(len(seen))]
                engine = self._engines.setdefault(job.key, _Engine(name, job.route, slots, known))
        return engine if engine is not None and engine.vain < IN_VAIN else None


def _opening_of(job: Job) -> int:
    tools = job.prompt.request.body.get("tools")
    return hash(dumps([*job.prompt.system, tools])) if job.prompt.system or tools else 0


def _digest_of(job: Job) -> str:
    """Digest of the checkpoint that a prompt begins with, in hexadecimal; empty: it begins with none."""
    return "" if job.prompt.checkpoint is None else job.prompt.checkpoint.digest.hex()
