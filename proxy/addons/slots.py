"""Slots of llama.cpp's llama-server: one for each conversation, saved before another takes it, and restored later.

This needs a server started with `--slot-save-path`; otherwise the server chooses slots. A server that also keeps
prompts in memory (`--cache-ram`) looks there before it reads into the named slot, unless that slot is empty (measured,
b11549). The server cannot delete files, so a bounded set of file names is reused, and purged files are overwritten with
an empty slot.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.base import SlotAction, SlotDone, SlotState
from proxy.backends.profile import ModelKey
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import JsonObject, dumps
from proxy.core.piece import as_count
from proxy.dialects.chat.request import SLOT
from proxy.job import Job
from proxy.net.tasks import spawn
from proxy.outcome import Outcome
from proxy.routing import Route
from proxy.store import Store

_log = logging.getLogger("spillway.slots")

QUIET = 10.0
"""Seconds without a request in a slot until it is saved: a save blocks all slots, and writes the whole prompt."""
MOST_BYTES = 16 * 2**30
"""Most bytes on disk for one model of one backend; the least recently used conversations go first."""
MOST_FILES = 64
LEAST = 128
"""Fewest tokens worth saving to a file."""
CLOSE = 16
"""Tokens by which a slot may differ from the usage of its last answer and still count as holding that prompt."""
# Nothing in `/props` says that a model cannot go on from a saved slot; it shows in what is read after a restore.
IN_VAIN = 2
"""Failures after which a server's slots are left alone: refused saves, and restored prompts that it read again anyway."""
FREE_SLOT = "⏳ Waiting for a free slot"
_OWNER = "slot files"
"""Owner of the list of files in the store."""
_LOST = "lost"
"""Checkpoint of a file that could not be restored."""


@dataclass(slots=True)
class _Slot:
    """Content of one slot, as far as it was filled through Spillway."""

    number: int
    job: Job | None = None
    """Job that runs in it, if any."""
    keys: Sequence[str] = ()
    """Keys of the history in it."""
    stem: str = ""
    """Key of the place where its newest turn begins; empty if the content is unknown."""
    checkpoint: str = ""
    opening: int = 0
    """Hash of its system messages and tools, which conversations of one program share; 0 if it has none."""
    tokens: int = 0
    """Tokens that it holds; 0 if unknown."""
    used: float = 0.0
    saved: bool = True

    @property
    def taken(self) -> bool:
        """Return whether a request runs in it: a job whose request is over may still have a summary written for others."""
        return self.job is not None and not self.job.outcome.seconds

    def take(self, job: Job, now: float, keys: Sequence[str]) -> None:
        """Record that a job runs in it. Other jobs do not wait for a job run ahead, nor for a prompt without keys."""
        self.job, self.keys, self.tokens = None if job.ahead or not keys else job, keys, 0
        self.saved = not job.ahead or (job.rewrites and self.saved)
        self.used = now if keys and not job.rewrites else self.used
        self.stem = keys[(newest_user(job.prompt.sent) or 1) - 1] if keys else ""
        self.checkpoint, self.opening = job.prompt.beginning, _opening_of(job) if keys else 0


@dataclass(slots=True)
class _Engine:
    """Slots of one model, and the files written for it."""

    name: str
    """Name of the list of files in the store."""
    route: Route
    """Route by which the model was reached last."""
    files: dict[str, dict[str, Any]]
    """Files by name, least recently used first: stem (empty if the file is due to be emptied), checkpoint and bytes."""
    sweeps: bool
    """Whether unlisted files may exist: the list was purged, or expired while Spillway was not running."""
    slots: list[_Slot] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has left its slot."""
    clears: bool = False
    """Whether the server moves idle slots to memory when another one starts to work (`--cache-idle-slots`, its default)."""
    vain: int = 0
    """Number of failures, up to `IN_VAIN`."""
    restores: bool = False
    """Whether a restored prompt was not read again: some builds leave in the slot what was there (llama.cpp issue 26676)."""
    read_pace: float = 1.0
    """Seconds to read a token."""
    restore_pace: float = 0.0
    """Seconds to restore a token from a file."""

    async def act(self, action: SlotAction, slot: _Slot, file: str = "") -> SlotDone | None:
        """Have the server act on a slot; returns None if it refused."""
        prober = self.route.prober
        return await prober.runner.run(prober.known_backend.use_slot(self.route.model, action, slot.number, file))

    def slot_of(self, outcome: Outcome) -> _Slot | None:
        """Return the slot in which the request of this outcome runs."""
        return next((each for each in self.slots if each.job is not None and each.job.outcome is outcome), None)

    def free(self, seen: Sequence[SlotState]) -> list[_Slot]:
        """List the slots in which nothing runs, and forget content that they no longer hold."""
        if len(seen) != len(self.slots):
            self.slots = [_Slot(number) for number in range(len(seen))]
        idle = [(slot, each) for slot, each in zip(self.slots, seen, strict=True) if not (slot.taken or each.busy)]
        for slot, each in idle:
            if abs(each.tokens - (slot.tokens or each.tokens or LEAST)) > CLOSE:
                self.clears |= slot.tokens > each.tokens == 0 <= each.task
                slot.stem, slot.saved = "", True
            slot.tokens = each.tokens
        return [slot for slot, _ in idle]

    def file_of(self, keys: Sequence[str], checkpoint: str | None = None) -> str:
        """Return the file that holds the longest prefix of a history under this checkpoint, or any; empty if there is none."""
        stems = {
            each["stem"]: name
            for name, each in self.files.items()
            if each["checkpoint"] == checkpoint or (checkpoint is None and each["checkpoint"] != _LOST)
        }
        return next((stems[key] for key in reversed(keys) if key in stems), "")

    def spare(self) -> str:
        """Return the first file name that is not listed."""
        owner = blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return next(name for number in count() if (name := f"spillway-{owner}-{number}.slot") not in self.files)


# Only with `--slot-save-path`: naming a slot turns the server's own memory of prompts off. Two conversations with the
# server's defaults read 8,900 tokens instead of 3,530 (b11549).
class SlotKeeper(AddOn):
    """Chooses the slot of each prompt. For one process: others that share the server choose for themselves."""

    def __init__(self, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives monotonic seconds."""
        self._store, self._now = store, now
        self._engines: dict[ModelKey, _Engine] = {}

    @override
    async def place(self, job: Job, beside: JsonObject | None = None) -> None:
        """Choose a slot, save its content, and restore the job's conversation if it was saved."""
        own = not job.prompt.links or SLOT in job.request.body or not job.route.known.has_places
        if own or (engine := await self._engine(job)) is None:
            return
        keys, fields = ([], beside) if beside is not None else (_keys(job.scope, job.prompt.links), job.prompt.fields)
        if keys:
            job.progress.waits_for = ""
            job.held.callback(self._vacate, job, engine)
        while True:
            async with engine.lock:
                engine.freed.clear()
                if keys and (slot := engine.slot_of(job.outcome)) is not None:
                    slot.job = None  # the job is sent again, so choose again: the slot may have been cleared
                slot = await self._choose(engine, job, keys)
                if slot is not None:
                    if keys:  # after system messages, any conversation of a program may begin
                        job.progress.own_slot = slot.stem in keys[len(job.prompt.system) :]
                    slot.take(job, self._now(), keys)
                    if keys and job.ahead:
                        spawn(self._save_when_quiet(engine, slot), name="slot")
            if slot is not None or job.ahead or not (keys and engine.slots and all(at.taken for at in engine.slots)):
                break
            await engine.freed.wait()  # sent now, the server would queue it for any slot and evict another conversation
        fields.pop(SLOT, None)
        if slot is not None and len(engine.slots) > 1:
            fields[SLOT] = slot.number

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Empty the files of a conversation that a viewer deletes, at once if a slot is free, and do not save it again."""
        keys = _keys(scope, links)
        for engine in self._engines.values():
            async with engine.lock:
                for slot in engine.slots:
                    slot.stem = "" if slot.stem in keys else slot.stem
                for each in engine.files.values():
                    each["stem"] = "" if each["stem"] in keys else each["stem"]
                await self._store.put_document(_OWNER, engine.name, engine.files)
                if free := await self._free(engine, engine.route):
                    slot = min(free, key=lambda each: (each.stem != "", each.used))
                    await self._save_within_bounds(engine, slot)

    def _vacate(self, job: Job, engine: _Engine) -> None:
        """Free the slot of a job, and save it once it has been quiet."""
        outcome, usage, slot = job.outcome, job.outcome.usage or {}, engine.slot_of(job.outcome)
        engine.freed.set()
        if slot is None:
            return
        prompt, reused = as_count(usage.get("prompt_tokens")), outcome.sent.reused or 0
        tokens = prompt + as_count(usage.get("completion_tokens")) - 1
        lasts = prompt > 0 and outcome.error is None and not job.background and not outcome.counts["paused"]
        slot.job, slot.used, slot.saved = None, 0.0 if job.background else self._now(), not lasts
        slot.tokens = tokens if lasts else 0
        if lasts and any(each["tokens"] >= 2 * LEAST for each in outcome.each("slot_restored")):
            engine.restores = reused >= LEAST
            engine.vain = 0 if engine.restores else engine.vain + 1
        if prompt - reused > LEAST and outcome.first_byte is not None:
            engine.read_pace = outcome.first_byte / (prompt - reused)
        if lasts and tokens >= LEAST and engine.vain < IN_VAIN:
            spawn(self._save_when_quiet(engine, slot), name="slot")

    async def _save_when_quiet(self, engine: _Engine, slot: _Slot) -> None:
        used, busy = slot.used, True
        while busy:
            await asyncio.sleep(QUIET)
            busy = any(each.taken for each in engine.slots)
        async with engine.lock:
            if slot.used == used and slot in (await self._free(engine, engine.route) or ()):
                await self._save_within_bounds(engine, slot)

    # -- the methods below need the engine's lock

    async def _choose(self, engine: _Engine, job: Job, keys: Sequence[str]) -> _Slot | None:
        """Return the slot that holds a job's conversation, else the least recently used one; None if the server has to choose.

        Without keys, the slot is for another prompt, such as a transcript to be summarised.
        """
        free, digest = await self._free(engine, job.route), job.prompt.beginning
        job.progress.waits_for = FREE_SLOT if free == [] else ""
        if not free:
            return None
        if name := engine.file_of(keys, digest):
            engine.files[name] = engine.files.pop(name)  # move it to the end: most recently used
        # Slots whose newest turn began within this history. Several may: a prompt read ahead can be in another slot than the
        # turn before it.
        going_on = (each for each in free if each.stem in keys)
        own = max(going_on, key=lambda each: (each.checkpoint == digest, each.used), default=None)
        if own is not None and own.checkpoint != digest and (name or job.rewrites):
            own = None
        name = engine.file_of(keys) if not (name or own) and job.closes_gaps else name
        for slot in free:
            # Save other slots if the server clears idle ones as another begins to work. Save the conversation's own slot if its
            # prompt is rewritten: a summary written later reads the old prompt once more.
            if engine.clears if slot is not own else slot.checkpoint != digest and not job.ahead:
                await self._save(engine, slot)
        if own is not None:
            return own
        opening = 0 if name or not keys else _opening_of(job)
        # Where the server clears idle slots, prefer the fullest: only for a slot that is not empty does it look into its memory.
        slot = min(free, key=lambda at: (-at.tokens * engine.clears, not opening or at.opening != opening, at.used))
        await self._save_within_bounds(engine, slot, stays=False)
        if name not in engine.files or engine.restore_pace >= engine.read_pace:
            return slot
        done = await engine.act("restore", slot, name)
        if done is None or not done.tokens:
            slot.stem, slot.tokens = "", 0
            if len(free) == len(engine.slots):  # otherwise running requests may only have taken the room that it needs
                engine.files[name]["checkpoint"] = _LOST
            return None  # let the server look in its memory, which it does not do if an empty slot is named
        engine.restore_pace = done.seconds / done.tokens
        slot.stem = engine.files[name]["stem"] if engine.restores else ""
        job.outcome.add("slot_restored", tokens=done.tokens)
        return slot

    async def _save(self, engine: _Engine, slot: _Slot) -> None:
        """Save a slot to a file, and list the file in the store; nothing happens if it is saved or its content is unknown."""
        if slot.saved or not slot.stem:
            return
        older = [name for name, each in engine.files.items() if each["stem"] in slot.keys]
        name = engine.file_of(slot.keys, slot.checkpoint) or (older[0] if older[1:] else engine.spare())
        slot.saved, done = True, await engine.act("save", slot, name)
        engine.files.pop(name, None)
        if done is not None:
            engine.files[name] = {"stem": slot.stem, "checkpoint": slot.checkpoint, "bytes": done.bytes}
        else:
            engine.vain += 1
            _log.warning("a slot of %s can't be saved: see its log, and the room in --slot-save-path", engine.name)
        await self._store.put_document(_OWNER, engine.name, engine.files)

    async def _save_within_bounds(self, engine: _Engine, slot: _Slot, *, stays: bool = True) -> None:
        """Save a slot, and overwrite surplus files with it, for which it is erased; if its content stays, restore it afterwards."""
        await self._save(engine, slot)
        while engine.sweeps and not stays and await engine.act("restore", slot, name := engine.spare()) is not None:
            engine.files[name] = {"stem": "", "checkpoint": "", "bytes": 0}
        engine.sweeps &= stays
        size, number, surplus = sum(each["bytes"] for each in engine.files.values()), len(engine.files), list[str]()
        for name, each in engine.files.items():
            if not each["stem"] or not (stays or (size <= MOST_BYTES and number <= MOST_FILES)):
                surplus.append(name)
                size, number = size - each["bytes"], number - 1
        if not surplus or await engine.act("erase", slot) is None:
            return
        for name in surplus:
            if await engine.act("save", slot, name) is not None:
                del engine.files[name]
        name = engine.file_of(slot.keys, slot.checkpoint)
        if stays and slot.stem and await engine.act("restore", slot, name) is None:
            slot.stem = ""
        await self._store.put_document(_OWNER, engine.name, engine.files)

    async def _free(self, engine: _Engine, route: Route) -> list[_Slot] | None:
        """List the slots in which nothing runs, and notice if the store was purged; None if the slots cannot be read now."""
        seen = await route.prober.runner.run(route.prober.known_backend.slots(route.model))
        if await self._store.document(_OWNER, engine.name) is None and self._store.healthy:
            for slot in engine.slots:
                slot.saved = True
            engine.files = {name: each | {"stem": ""} for name, each in engine.files.items()}
            await self._store.put_document(_OWNER, engine.name, engine.files)
        engine.route = route if seen else engine.route
        return engine.free(seen) if seen else None

    async def _engine(self, job: Job) -> _Engine | None:
        """Return the slots of the job's model; None if the server saves none, cannot say now, or failed too often."""
        engine, backend, runner = self._engines.get(job.key), job.known_backend, job.route.prober.runner
        if engine is None:
            saves = await runner.run(backend.saves_slots(job.route.model))
            job.route.known.has_places = saves is not False
            if saves:
                name = "|".join(job.key)
                files = await self._store.document(_OWNER, name)
                engine = self._engines.setdefault(job.key, _Engine(name, job.route, files or {}, sweeps=files is None))
        return engine if engine is not None and engine.vain < IN_VAIN else None


def _keys(scope: str, links: Sequence[bytes]) -> list[str]:
    """Return keys for the links of a history, which include the scope, so that no other credential finds them."""
    return [f"{scope} {link.hex()}" for link in links]


def _opening_of(job: Job) -> int:
    tools = job.prompt.request.body.get("tools")
    return hash(dumps([*job.prompt.system, tools])) if job.prompt.system or tools else 0
