"""Knowledge of one backend and its models: read when needed, cached, used while a new reading is late, corrected by answers."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from proxy.backends import backend_of, detect
from proxy.backends.base import UNKNOWN, Backend, Listed
from proxy.backends.profile import Fact, ModelProfile, Trust, value_of
from proxy.backends.windows import CutSeen, window_cut
from proxy.net.flows import FlowRunner
from proxy.net.loading import WindowRequest
from proxy.net.tasks import spawn
from proxy.store import Store
from proxy.tokens.cache import Shares

T = TypeVar("T")
COOL_DOWN = 1.0
"""Seconds before a backend is asked again after it failed to answer, or if its answer has to be fresh."""
PATIENCE = 0.5
"""Seconds that a request waits for an update of known facts: not 0, because a model may have a smaller window now."""
FIXED_FACTOR = 10
"""Factor by which a profile is cached for longer if windows cannot change while the server runs."""
MOST_MODELS = 256
"""Models remembered in addition to those that the backend lists; clients choose their ids, so there must be a limit."""
LESSON_TTL = 3600.0
"""Seconds until a lesson expires; then a request finds out whether it is still true."""
MOST_SEEN = 8
"""Observations of one model that are remembered until another confirms them."""
HELD_FOR = 300.0
"""Seconds for which the window is taken to be at least as large as the last answer, whatever an error says."""
_ENDED_FAR = 0.7
"""Share of the window below which no answer ends for lack of room; Spillway's own bounds are never so low."""


class Prober:
    """The kind of one backend, its models and the facts known about each. Nothing here raises if a backend fails.

    Args:
        runner: reaches the backend.
        kind: `auto` to detect it by the shape of replies, or else the kind, which is then not checked.
        ttl: seconds for which a profile or the model list is cached.
        clock: monotonic clock, in seconds.
        overrides: returns the user's settings for a model id, and its service's documented demands.
        store: remembers windows across restarts, under this `name` of the backend; None if nothing does.
    """

    def __init__(
        self,
        runner: FlowRunner,
        *,
        kind: str = "auto",
        ttl: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        overrides: Callable[[str], ModelProfile] = lambda _: ModelProfile(),
        store: Store | None = None,
        name: str = "",
    ) -> None:
        self.runner, self.ttl, self.clock, self.overrides = runner, ttl, clock, overrides
        self.request_window: Callable[[str], WindowRequest] = partial(WindowRequest, None)
        """Makes the request for the window with which the user wants a model loaded."""
        self.store, self.name = store, name
        self._auto = kind == "auto"
        self.known_backend: Backend = UNKNOWN if self._auto else backend_of(kind)
        """Kind of backend as currently known."""
        self._last_backend: Backend | None = None
        self._detected, self._kind_expires = -math.inf, -math.inf if self._auto else math.inf
        self._list: list[Listed] = []
        self._ids = frozenset[str]()
        self._list_expires = -math.inf
        self._models: dict[str, KnownModel] = {}
        self._unlisted = Shares[str, KnownModel](MOST_MODELS)
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._patience = PATIENCE

    async def backend(self) -> Backend:
        """Return the kind of backend, `UNKNOWN` while it does not answer."""
        if self.clock() >= self._kind_expires:
            await self.refresh("backend", self._detect, known=self.known_backend is not UNKNOWN)
        return self.known_backend

    async def listed(self) -> list[Listed]:
        """Return the backend's list of models; the same object until it is read again."""
        if self.clock() >= self._list_expires:
            await self.refresh("models", self._read_models, known=bool(self._list))
        return self._list

    async def models(self) -> list[Listed]:
        """Return the listed models with all known facts about each; the last good list while the backend does not answer."""
        merged = list[Listed]()
        for each in await self.listed():
            await asyncio.sleep(0)  # thousands of models took a quarter of a second of the event loop
            merged.append(replace(each, profile=self.known(each.id).listed(each.profile)))
        return merged

    def known(self, model: str) -> "KnownModel":
        """Return the knowledge about a model."""
        known = self._models.get(model) or self._unlisted.get(model) or KnownModel(self, model)
        if model in self._ids:
            self._models[model] = known
        else:
            self._unlisted.put(model, known)
        return known

    async def count(self, body: dict[str, Any]) -> int | None:
        """Count the exact prompt tokens of a chat completion body; None if the backend cannot."""
        return await self.runner.run((await self.backend()).count(body))

    def give_up_door(self) -> None:
        """Treat a server that only imitates its kind as a generic one, of which only `/v1` is known."""
        self.known_backend, self._kind_expires, self._list_expires = backend_of("generic"), math.inf, -math.inf
        self._models.clear()

    def forget(self) -> None:
        """Forget all lessons and have everything read again: the server may now be another one, or run with other flags."""
        for known in (*self._models.values(), *self._unlisted.values()):
            known.forget()
        self._list_expires = -math.inf
        if self._auto:
            self._kind_expires = min(self._kind_expires, self._detected + COOL_DOWN)

    def snapshot(self) -> dict[str, Any]:
        """Return the current knowledge: kind, and by model and field, value, origin, trust, and seconds until a lesson expires."""
        known = (*self._models.values(), *self._unlisted.values())
        models = {each.model: each.current().as_json(each.expires_in()) for each in known}
        return {"kind": None if self.known_backend is UNKNOWN else self.known_backend.kind, "models": models}

    async def refresh(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, None]], *, known: bool) -> None:
        """Read something again. If it is already `known`, wait only a moment, and not at all while a probe is late."""
        if not self._flights:
            self._patience = PATIENCE
        try:
            async with asyncio.timeout(self._patience if known else None):
                await self.once(key, make)
        except TimeoutError:
            self._patience = 0.0

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Share one probe among all callers of the same key; it goes on even if the caller who began it is cancelled."""
        task = cast("asyncio.Task[T] | None", self._flights.get(key))
        if task is None:
            task = spawn(make(), name="probe")
            self._flights[key] = task
            task.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(task)

    async def _detect(self) -> None:
        traced = await self.runner.trace(detect(self.runner.url))
        found, seconds = traced.value, COOL_DOWN
        if found is not None and found.kind != "generic":
            seconds = math.inf
        elif traced.reached:
            if found is None or not traced.complete:
                # A known backend that is starting or in trouble matches no kind, so its last kind is kept.
                found = self._last_backend or backend_of("generic")
            seconds = self.ttl * FIXED_FACTOR if traced.complete else COOL_DOWN
        self.known_backend = found or UNKNOWN
        self._detected = self.clock()
        self._kind_expires = self._detected + seconds
        if found is None or found is self._last_backend:
            return
        if self._last_backend is not None:
            self._models, self._unlisted = {}, Shares(MOST_MODELS)
            self._list, self._list_expires = [], -math.inf
        self._last_backend = found

    async def _read_models(self) -> None:
        backend = await self.backend()
        traced = None if backend is UNKNOWN else await self.runner.trace(backend.models())
        if traced is not None and (traced.complete or not self._list):
            self._list = traced.value
            self._ids = frozenset(each.id for each in self._list)
            self._models = {model: known for model, known in self._models.items() if model in self._ids}
        complete = traced is not None and traced.complete
        self._list_expires = self.clock() + (self.ttl if complete else COOL_DOWN)


class KnownModel:
    """Knowledge about one model: its backend's report, and the lessons from later answers and errors.

    A figure in an error is believed at once. A figure inferred from an estimate has to be seen twice, independently. Both
    expire, and yield to a prompt that disproves them and to a new report of the loaded instance.
    """

    def __init__(self, prober: Prober, model: str) -> None:
        self.model = model
        self.requested_window: int | None = None
        """Window in tokens with which one request made the backend load it; any other request has it reloaded."""
        self.window_request = prober.request_window(model)
        self.has_places = True
        """Whether the slot for a prompt may be chosen; an add-on that finds no choice clears it until the next reading."""
        self.prober = prober
        self._clock = prober.clock
        self._reported = ModelProfile()
        self._complete = False
        """Whether the report answers every question."""
        self._read_at = self._expires = -math.inf
        self._unloadable = False
        """Whether the backend was asked to load it since the last reading, and did not."""
        self._lessons: dict[str, tuple[Fact[Any], float]] = {}
        """Lessons by field of the profile, each with its expiry on the clock."""
        self._merged: ModelProfile | None = None
        self._cuts: deque[tuple[float, CutSeen]] = deque(maxlen=MOST_SEEN)
        self.refused, self._held = 0, (0, -math.inf)
        """Tokens below which the window must be, by a refusal that named no figure; 0 without one."""
        self._doubted: Fact[int] | None = None
        """Reported window that was last contradicted by an answer or an error."""
        self._served_as = ""

    async def profile(self, *, fresh: bool = False) -> ModelProfile:
        """Return its profile; the last good one if the backend does not answer, or not soon.

        `fresh`: read again unless that was done a moment ago, because much depends on it.
        """
        now = self._clock()
        if now >= self._expires or (fresh and now >= self._read_at + COOL_DOWN):
            await self.prober.refresh(("profile", self.model), self._read, known=self._complete)
        return self.current()

    async def loaded(self, body: Mapping[str, Any]) -> ModelProfile:
        """Return the profile as it applies to the request `body`, after loading the model if need be."""
        profile = await self.profile()
        if profile.provisional and not self._unloadable:
            await self.prober.once(("load", self.model), partial(self._load, body))
        return self.current()

    async def loaded_window(self) -> int | None:
        """Read the window in tokens that the loaded instance reports at this moment, or None."""
        await self.prober.once(("profile", self.model), self._read)
        return self._reported.loaded_window

    async def is_busy(self) -> bool:
        """Return whether the backend reports that it is working, for any client."""
        backend = await self.prober.backend()
        return await self.prober.runner.run(backend.busy(self.model))

    # -- what is known now

    def current(self) -> ModelProfile:
        """Return all known facts, merged. The same object while nothing changes, because every request asks."""
        now = self._clock()
        if any(now >= expires for _, expires in self._lessons.values()):
            self._lessons = {name: each for name, each in self._lessons.items() if now < each[1]}
            self._merged = None
        if self._merged is None:
            self._merged = self._merge(self._reported)
        return self._merged

    def listed(self, profile: ModelProfile) -> ModelProfile:
        """Return all known facts with the `profile` of a list merged in, unless a complete reading is recent."""
        return self.current() if self._complete and self._clock() < self._expires else self._merge(profile)

    def _merge(self, reported: ModelProfile) -> ModelProfile:
        learned: dict[str, Any] = {name: fact for name, (fact, _) in self._lessons.items()}
        given, backend = self.prober.overrides(self.model), self.prober.known_backend
        return self.window_request.merged(backend, reported, ModelProfile(**learned), given)

    @property
    def reported_window(self) -> Fact[int] | None:
        """Window from the backend's last report; None if it reported none."""
        window = self._reported.window
        return window if window is not None and window.trust > Trust.FALLBACK else None

    @property
    def held(self) -> int:
        """Most tokens that the backend recently held at once; 0 if unknown."""
        most, until = self._held
        return most if self._clock() < until else 0

    def expires_in(self) -> dict[str, float]:
        """Return the seconds until each lesson expires, by field of the profile."""
        return {name: expires - self._clock() for name, (_, expires) in self._lessons.items()}

    def learn(self, field: str, value: Any, origin: str) -> None:
        """Record a lesson about a field of the profile, with its source in `origin`. Sets, such as refusals, are merged."""
        if isinstance(value, frozenset) and field in self._lessons:
            value |= self._lessons[field][0].value
        self._lessons[field] = Fact(value, origin, Trust.LEARNED), self._clock() + LESSON_TTL
        self.expire()

    def learn_cut(self, seen: CutSeen) -> int | None:
        """Record a prompt that seems to have been cut; return the window in tokens if one is learned from it.

        A window reported by the loaded instance needs no second observation, and no number of observations overrides it.
        """
        now = self._clock()
        before = [each for expires, each in self._cuts if now < expires]
        self._cuts.append((now + LESSON_TTL, seen))
        window = window_cut(seen, before, loaded=self._reported.loaded_window)
        learned = self._lessons.get("window")
        if window is None or (learned is not None and learned[0].value <= window):
            return None
        self.learn("window", window, "silent cut")
        return window

    def answered(self, tokens: int, *, ended: bool = False) -> int | None:
        """Record that the backend held this number of tokens at once; return the learned window that this disproves, or None.

        A contradicted window of the backend's own report is read again, once. `ended`: it ended for lack of room.
        """
        if tokens >= self.held:
            self._held = tokens, self._clock() + HELD_FOR
        window = self._reported.window
        if window is not None and (tokens > window.value or (ended and tokens < window.value * _ENDED_FAR)):
            self.doubt(window)
        learned = self._lessons.get("window")
        if learned is None or tokens <= learned[0].value:
            return None
        self.unlearn("window")
        return cast("int", learned[0].value)

    def doubt(self, window: Fact[int]) -> None:
        """Mark a reported window as contradicted, so that it is read again, once."""
        if window != self._doubted:
            self._doubted = window
            self.expire()

    def answered_as(self, name: str) -> None:
        """Record the model's name in an answer.

        If it differs from the last one, an alias, a router or a server that swaps models now serves another model.
        """
        if self._served_as not in ("", name):
            self.forget()
        self._served_as = name

    def unlearn(self, *fields: str) -> bool:
        """Forget the lessons about these fields of the profile; return whether there were any."""
        if "window" in fields:
            self.refused = 0
            self._cuts.clear()
        self._merged = None
        return bool([field for field in fields if self._lessons.pop(field, None) is not None])

    def forget(self) -> None:
        """Forget all lessons, and have the profile read again."""
        self.unlearn("window")
        self._lessons.clear()
        self._held = 0, -math.inf
        self.window_request = self.prober.request_window(self.model)
        self.expire()

    def expire(self) -> None:
        """Have the profile read again before it is next used."""
        self._expires = -math.inf
        self._merged = None

    async def _load(self, body: Mapping[str, Any]) -> None:
        self.requested_window = None
        backend, runner = await self.prober.backend(), self.prober.runner
        if backend is not UNKNOWN:
            granted = await self.window_request.load(backend, self._reported, runner, body)
            await self._read()  # not shared with a probe from before the load
            self.window_request.settle(granted, backend, self._reported)
        self._unloadable, self._merged = self._reported.provisional, None

    async def _read(self) -> None:
        prober = self.prober
        backend = await prober.backend()
        traced = None if backend is UNKNOWN else await prober.runner.trace(backend.profile(self.model))
        if traced is not None and traced.complete:
            reported = await self._with_last_window(traced.value)
            self._give_up_contradicted(reported)
            self._reported, self._complete = reported, True
        elif traced is not None and not self._complete:
            self._reported = traced.value
        fixed = backend.fixed_windows and self._reported.window is not None
        seconds = prober.ttl * (FIXED_FACTOR if fixed else 1)
        self._read_at = self._clock()
        self._expires = self._read_at + (seconds if traced is not None and traced.complete else COOL_DOWN)
        self._unloadable, self._merged, self.has_places = False, None, True

    async def _with_last_window(self, reported: ModelProfile) -> ModelProfile:
        """Store the window of a loaded model; complete the report of one that is not loaded with the stored window."""
        store, window = self.prober.store, reported.window
        key = f"loaded|{self.prober.name}|{self.model}"
        if window is not None and window.value == self.requested_window:
            reported = replace(reported, window=None, provisional=True)
        elif window is not None and window.trust is Trust.LOADED:
            if store is not None and window != self._reported.window:
                await store.value(key, b"%d" % window.value)
            return reported
        stored = await store.value(key) if store is not None and reported.provisional else None
        if reported.window is None and stored is not None and stored.isdigit():
            return replace(reported, window=Fact(int(stored), "when it was last loaded", Trust.CONFIGURED))
        return reported

    def _give_up_contradicted(self, reported: ModelProfile) -> None:
        """Drop lessons that the backend's report contradicts: another loaded window, or tools that it accepts again."""
        window, learned = reported.loaded_window, self._lessons.get("window")
        if window is not None and learned and learned[0].value != window:
            del self._lessons["window"]
        takes, took = (value_of(each.tools) for each in (reported, self._reported))
        if takes and not took:
            self._lessons.pop("tools", None)
