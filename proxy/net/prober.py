"""Knowledge of one backend and its models: read when needed, believed for a while and while a new reading is late, corrected by answers."""

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
"""Seconds before a backend is asked again that failed to answer, or whose answer has to be fresh."""
PATIENCE = 0.5
"""Seconds that a request waits for news of what is known already: long enough for any backend that is well."""
FIXED_FACTOR = 10
"""How many times longer a profile is believed where windows can't change while the server runs."""
MOST_MODELS = 256
"""Models remembered beside those that the backend lists; their ids come from clients, so there must be an end."""
LESSON_TTL = 3600.0
"""Seconds for which a lesson is believed; then one request finds out whether it still holds."""
MOST_SEEN = 8
"""Observations of one model that are remembered until another bears them out."""
HELD_FOR = 300.0
"""Seconds for which a window is no smaller than what was just answered, whatever an error says."""
_ENDED_FAR = 0.7
"""Share of the window before which no answer ends for want of room; Spillway itself bounds none so early."""


class Prober:
    """The kind of one backend, its models and what is known of each. Nothing here raises for a backend that fails.

    Args:
        runner: reaches the backend.
        kind: `auto` to tell by the shape of replies, else the kind, which is then taken for granted.
        ttl: seconds a profile or the model list is believed.
        clock: seconds that never go back.
        overrides: what the user set for a model id, and what its service documents.
        store: remembers windows across restarts, under this `name` of the backend; None: nothing does.
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
        self.runner = runner
        self.ttl = ttl
        self.clock = clock
        self.overrides = overrides
        self.request_window: Callable[[str], WindowRequest] = partial(WindowRequest, None)
        """Makes the request for the window that the user wants a model loaded with."""
        self.store = store
        self.name = name
        self._auto = kind == "auto"
        self.known_backend: Backend = UNKNOWN if self._auto else backend_of(kind)
        """The kind of backend as far as it is known, without asking."""
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
        """The kind of backend; `UNKNOWN` while it does not answer."""
        if self.clock() >= self._kind_expires:
            await self.refresh("backend", self._detect, known=self.known_backend is not UNKNOWN)
        return self.known_backend

    async def listed(self) -> list[Listed]:
        """The list itself, as it was read: the same object until it is read again."""
        if self.clock() >= self._list_expires:
            await self.refresh("models", self._read_models, known=bool(self._list))
        return self._list

    async def models(self) -> list[Listed]:
        """The models it lists, with all that is known of each; the last good list while it does not answer."""
        return [replace(each, profile=self.known(each.id).listed(each.profile)) for each in await self.listed()]

    def known(self, model: str) -> "KnownModel":
        """Return what is known of a model."""
        known = self._models.get(model) or self._unlisted.get(model) or KnownModel(self, model)
        if model in self._ids:
            self._models[model] = known
        else:
            self._unlisted.put(model, known)
        return known

    async def count(self, body: dict[str, Any]) -> int | None:
        """Exact prompt tokens of a chat completion body, where the backend counts; None otherwise."""
        return await self.runner.run((await self.backend()).count(body))

    def give_up_door(self) -> None:
        """Take a server that only imitates its kind for one of which `/v1` alone is known."""
        self.known_backend, self._kind_expires, self._list_expires = backend_of("generic"), math.inf, -math.inf
        self._models.clear()

    def forget(self) -> None:
        """Ask again before believing anything: the server behind the address may be another one now, or have other flags."""
        for known in (*self._models.values(), *self._unlisted.values()):
            known.forget()
        self._list_expires = -math.inf
        if self._auto:
            self._kind_expires = min(self._kind_expires, self._detected + COOL_DOWN)

    def snapshot(self) -> dict[str, Any]:
        """Return what is known now, without asking: kind, and per model and field value, origin, trust, and seconds that a lesson holds."""
        known = (*self._models.values(), *self._unlisted.values())
        models = {each.model: each.current().as_json(each.expires_in()) for each in known}
        return {"kind": None if self.known_backend is UNKNOWN else self.known_backend.kind, "models": models}

    async def refresh(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, None]], *, known: bool) -> None:
        """Read something again. Where it is `known`, nobody waits longer than a moment, nor at all while a probe is late."""
        if not self._flights:
            self._patience = PATIENCE
        try:
            async with asyncio.timeout(self._patience if known else None):
                await self.once(key, make)
        except TimeoutError:
            self._patience = 0.0

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Share one probe among all who ask for the same; it goes on when the one who began it leaves."""
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
                # While a known backend starts, or is in trouble, nothing fits.
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
    """All that is known of one model: what its backend reports, and what answers and errors taught since then.

    What an error names is believed at once. What only follows from an estimate has to be seen twice, independently. Both
    expire, yield to a prompt that proves them wrong, and to what the loaded instance newly reports.
    """

    def __init__(self, prober: Prober, model: str) -> None:
        self.model = model
        self.requested_window: int | None = None
        """Tokens with which one request had it loaded: for any other it is loaded again."""
        self.window_request = prober.request_window(model)
        self.has_places = True
        """Whether it may be chosen where it reads a prompt; an add-on that finds nothing to choose says so until the next reading."""
        self.prober = prober
        self._clock = prober.clock
        self._reported = ModelProfile()
        self._complete = False
        """Whether that was reported in answer to every question."""
        self._read_at = self._expires = -math.inf
        self._unloadable = False
        """Whether the backend was told to load it since then, and did not."""
        self._lessons: dict[str, tuple[Fact[Any], float]] = {}
        """By field of the profile, and until when on the clock."""
        self._merged: ModelProfile | None = None
        self._cuts: deque[tuple[float, CutSeen]] = deque(maxlen=MOST_SEEN)
        self._held = 0, -math.inf
        self._doubted: Fact[int] | None = None
        """Window that something has contradicted."""
        self._served_as = ""

    async def profile(self, *, fresh: bool = False) -> ModelProfile:
        """All that is known of it; the last good answer while the backend does not answer, or not soon.

        `fresh`: as of now, but for a moment, because much depends on it.
        """
        now = self._clock()
        if now >= self._expires or (fresh and now >= self._read_at + COOL_DOWN):
            await self.prober.refresh(("profile", self.model), self._read, known=self._complete)
        return self.current()

    async def loaded(self, body: Mapping[str, Any]) -> ModelProfile:
        """Read the profile as it holds for the request `body`, after loading the model if need be."""
        profile = await self.profile()
        if profile.provisional and not self._unloadable:
            await self.prober.once(("load", self.model), partial(self._load, body))
        return self.current()

    async def loaded_window(self) -> int | None:
        """Window in tokens that the loaded instance reports at this moment; None where it reports none."""
        await self.prober.once(("profile", self.model), self._read)
        return self._reported.loaded_window

    async def is_busy(self) -> bool:
        """Return whether the backend says that it is at work, for whichever client."""
        backend = await self.prober.backend()
        return await self.prober.runner.run(backend.busy(self.model))

    # -- what is known now

    def current(self) -> ModelProfile:
        """Merge what is known: the same object while nothing changes, because every request asks."""
        now = self._clock()
        if any(now >= expires for _, expires in self._lessons.values()):
            self._lessons = {name: each for name, each in self._lessons.items() if now < each[1]}
            self._merged = None
        if self._merged is None:
            self._merged = self._merge(self._reported)
        return self._merged

    def listed(self, profile: ModelProfile) -> ModelProfile:
        """Merge what is known with the `profile` in a list, unless the backend was asked for more lately."""
        return self.current() if self._complete and self._clock() < self._expires else self._merge(profile)

    def _merge(self, reported: ModelProfile) -> ModelProfile:
        learned: dict[str, Any] = {name: fact for name, (fact, _) in self._lessons.items()}
        given, backend = self.prober.overrides(self.model), self.prober.known_backend
        return self.window_request.merged(backend, reported, ModelProfile(**learned), given)

    @property
    def reported_window(self) -> Fact[int] | None:
        """The window that the backend itself told when it was last asked; None where it told none."""
        window = self._reported.window
        return window if window is not None and window.trust > Trust.FALLBACK else None

    @property
    def held(self) -> int:
        """The most tokens that the backend held at once of late; 0 for unknown."""
        most, until = self._held
        return most if self._clock() < until else 0

    def expires_in(self) -> dict[str, float]:
        """Return per field of the profile how many seconds its lesson still holds."""
        return {name: expires - self._clock() for name, (_, expires) in self._lessons.items()}

    def learn(self, field: str, value: Any, origin: str) -> None:
        """Believe a value of a field of the profile; `origin` says in whose words. Refusals of one field add up."""
        if isinstance(value, frozenset) and field in self._lessons:
            value |= self._lessons[field][0].value
        self._lessons[field] = Fact(value, origin, Trust.LEARNED), self._clock() + LESSON_TTL
        self.expire()

    def learn_cut(self, seen: CutSeen) -> int | None:
        """Note a prompt that seems to have been cut; the window in tokens if one is believed for it from now on.

        A window that the loaded instance reports needs no other observation, and none stands against it.
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
        """Note that the backend held so many tokens at once; the learned window that this disproves, if one.

        A window of its own that this contradicts is read again, once. `ended`: for want of room.
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
        """Have a reported window that something contradicts read again, once."""
        if window != self._doubted:
            self._doubted = window
            self.expire()

    def answered_as(self, name: str) -> None:
        """Note the name that the backend gave the model in an answer.

        Another one than last time is another model behind an alias, a router or a server that swaps models.
        """
        if self._served_as not in ("", name):
            self.forget()
        self._served_as = name

    def unlearn(self, *fields: str) -> bool:
        """Forget what was learned of these fields of the profile; whether there was any."""
        if "window" in fields:
            self._cuts.clear()
        self._merged = None
        return bool([field for field in fields if self._lessons.pop(field, None) is not None])

    def forget(self) -> None:
        """Ask again, and doubt all that was learned."""
        self._lessons.clear()
        self._cuts.clear()
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
        """Store the window of a loaded model; give one that is not loaded the stored one where its backend names none."""
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
        """Give up what the backend now contradicts: another window of the loaded instance, or tools that it newly takes."""
        window, learned = reported.loaded_window, self._lessons.get("window")
        if window is not None and learned and learned[0].value != window:
            del self._lessons["window"]
        takes, took = (value_of(each.tools) for each in (reported, self._reported))
        if takes and not took:
            self._lessons.pop("tools", None)
