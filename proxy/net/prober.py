"""Knowledge of one backend and its models: probed when asked for, cached for a while, corrected by errors."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from proxy.backends import backend_of, detect
from proxy.backends.base import Backend, Listed, Probe, Reply
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust, merge_profiles
from proxy.backends.windows import CutSeen, Filled
from proxy.net.flows import FlowRunner, Traced
from proxy.net.lessons import LESSON_TTL, LastLoaded, Lessons, contradicts
from proxy.net.tasks import spawn

T = TypeVar("T")
COOL_DOWN = 1.0
"""Seconds before a backend is asked again that failed to answer, or whose answer has to be fresh."""
FIXED_FACTOR = 10
"""How many times longer a profile is believed where windows can't change while the server runs."""
DOUBTED = 60.0
"""Seconds for which nothing may fit a backend whose kind was known, before it is believed to be another one now."""
MOST_MODELS = 1024
"""Models remembered; their ids come from clients, so there must be an end."""


@dataclass(frozen=True, slots=True)
class _Cached:
    profile: ModelProfile
    read: float
    expires: float
    good: bool
    """From a probe whose every question was answered."""
    doubted: bool = False
    """Whether something has contradicted it: then it is read again, once, before the time is up."""
    unloadable: bool = False
    """Whether the backend was just told to load the model, and did not."""


@dataclass(frozen=True, slots=True)
class _Merged:
    parts: tuple[object, ...]
    profile: ModelProfile


class Prober:
    """The profiles of one backend. Nothing here raises for a backend that fails or is not there.

    Args:
        runner: reaches the backend.
        kind: `auto` to tell by the shape of replies, else the kind, which is then taken for granted.
        ttl: seconds a profile or the model list is believed.
        clock: seconds that never go back.
        overrides: what the user set for a model id, as facts of `Trust.USER`.
        lesson_ttl: seconds a learned window, or a refusal of tools or of a way to continue, is remembered.
        last_loaded: remembers windows across restarts; None: nothing does.
    """

    def __init__(
        self,
        runner: FlowRunner,
        *,
        kind: str = "auto",
        ttl: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        overrides: Callable[[str], ModelProfile] = lambda _: ModelProfile(),
        lesson_ttl: float = LESSON_TTL,
        last_loaded: LastLoaded | None = None,
    ) -> None:
        self.runner = runner
        self._ttl = ttl
        self._clock = clock
        self._overrides = overrides
        self._last_loaded = last_loaded
        self._auto = kind == "auto"
        self.known_backend: Backend | None = None if self._auto else backend_of(kind)
        """The kind of backend as far as it is known, without asking."""
        self._last_kind: str | None = None
        self._settled_until = self._unsettled = -math.inf if self._auto else math.inf
        self._detect_at, self._odd_since = -math.inf, math.inf
        self._list: list[Listed] = []
        self._list_expires = -math.inf
        self._cache: dict[str, _Cached] = {}
        self.lessons = Lessons(ttl=lesson_ttl, clock=clock, most=MOST_MODELS)
        self._merges: dict[str, _Merged] = {}
        self._requested: dict[str, int] = {}
        """Windows in tokens with which requests had models loaded for themselves."""
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._named: dict[str, str] = {}

    # -- asking --------------------------------------------------------------------------------------

    async def backend(self) -> Backend | None:
        """The kind of backend, or None while it does not answer."""
        if self._clock() >= max(self._settled_until, self._detect_at):
            await self._once("backend", self._detect)
        return self.known_backend

    async def listed(self) -> list[Listed]:
        """The list itself, as it was read: the same object until it is read again."""
        if self._clock() >= self._list_expires:
            await self._once("models", self._read_models)
        return self._list

    async def models(self) -> list[Listed]:
        """The models it lists, with all that is known of each; the last good list while it does not answer."""
        return [replace(listed, profile=self._known(listed.id, listed.profile)) for listed in await self.listed()]

    async def profile(self, model: str, *, fresh: bool = False) -> ModelProfile:
        """All that is known of a model; the last good answer while it does not answer.

        `fresh`: as of now, but for a moment, because much depends on it.
        """
        cached, now = self._cache.get(model), self._clock()
        if cached is None or now >= cached.expires or (fresh and now >= cached.read + COOL_DOWN):
            cached = await self._once(("profile", model), partial(self._read_profile, model))
        return self._merged(model, cached.profile)

    async def loaded(self, model: str, body: Mapping[str, Any]) -> ModelProfile:
        """Read the profile of a model that the request `body` is about to be sent to, after loading it if need be."""
        profile, cached = await self.profile(model), self._cache.get(model)
        if not profile.provisional or (cached is not None and cached.unloadable):
            return profile
        cached = await self._once(("load", model), partial(self._load, model, body))
        return self._merged(model, cached.profile)

    async def loaded_window(self, model: str) -> int | None:
        """Window in tokens that the loaded instance reports at this moment; None where it reports none."""
        self.expire(model)
        await self.profile(model)
        return self._loaded_window(model)

    async def count(self, body: dict[str, Any]) -> int | None:
        """Exact prompt tokens of a chat completion body, where the backend counts; None otherwise."""
        backend = await self.backend()
        return None if backend is None else await self.runner.run(backend.count(body))

    async def busy(self, model: str) -> bool:
        """Return whether the backend says that it is at work, for whichever client."""
        backend = await self.backend()
        return backend is not None and await self.runner.run(backend.busy(model))

    async def ask(self, path: str) -> Reply:
        """Return what the backend answers to a GET; see `Reply` for when it does not."""
        return await self.runner.exchange(Probe("GET", path))

    # -- learning ------------------------------------------------------------------------------------

    def learn(self, model: str, window: int, origin: str) -> None:
        """Believe that a window has so many tokens; `origin` says who named it. The model is probed anew."""
        self.lessons.learn_window(model, window, origin)
        self.expire(model)

    def load_for_one(self, model: str, window: int) -> None:
        """Note that a request has the model loaded with a window of its own, in tokens."""
        self._requested[model] = window
        _bound(self._requested)
        self.expire(model)

    def learn_cut(self, model: str, seen: CutSeen) -> int | None:
        """Note a prompt that seems to have been cut; the window in tokens if one is believed for it from now on."""
        window = self.lessons.cut(model, seen, loaded=self._loaded_window(model))
        known = self.lessons.profile(model)
        if window is None or (known and known.window and known.window.value <= window):
            return None
        self.learn(model, window, "silent cut")
        return window

    def learn_filled(self, model: str, seen: Filled) -> int | None:
        """Note an unbounded answer that ended for its length, of an unknown window; the window if it is believed now."""
        if (window := self.lessons.filled(model, seen)) is not None:
            self.learn(model, window, "filled")
        return window

    def answered(self, model: str, tokens: int, *, ended: bool = False) -> int | None:
        """Note that the backend held so many tokens at once; the learned window that this disproves, if one.

        A window of its own that this contradicts is read again before the next request. `ended`: for want of room.
        """
        disproved = self.lessons.answered(model, tokens)
        cached = self._cache.get(model)
        window = cached.profile.window if cached is not None else None
        if cached and window and not cached.doubted and contradicts(window.value, tokens, ended=ended):
            self._cache[model] = replace(cached, expires=-math.inf, doubted=True)
        return disproved

    def answered_as(self, model: str, name: str) -> None:
        """Note the name that the backend gave the model in an answer.

        Another one than last time is another model behind an alias, a router or a server that swaps models: what was
        learned of the one before is doubted, and the backend asked again before the next request.
        """
        if self._named.get(model) == name:
            return
        last = self._named.pop(model, name)
        _bound(self._named)
        self._named[model] = name
        if last == name:
            return
        self.expire(model)
        self.lessons.suspect(model)

    def refuse_tools(self, model: str, origin: str) -> None:
        """Note that tools were refused for a model; `origin` says in whose words.

        That holds for a time, or until the backend newly says that the model takes tools or is started anew. The user's own word stands above it.
        """
        cached = self._cache.get(model)
        listed = cached.profile.tools if cached is not None else None
        self.lessons.refuse_tools(model, origin, listed=listed.value if listed is not None else None)

    def refuse_continuation(self, model: str, how: Continuation, origin: str) -> None:
        """Note that this way to continue an answer was refused for a model; it holds for as long as for tools."""
        self.lessons.refuse_continuation(model, how, origin)

    def unlearn(self, model: str, what: str) -> bool:
        """Forget what was learned of a model: its `window`, `tools`, `continuations`, or `all`; whether there was any."""
        return self.lessons.unlearn(model, what)

    def forget(self, model: str | None = None) -> None:
        """Ask again before believing what is known of a model, or of all: the connection was refused, or came back.

        The server behind the address may be another one now, so its kind is detected again as well.
        """
        for name in (model,) if model is not None else tuple(self._cache):
            self.expire(name)
        self.lessons.suspect(model)
        self._list_expires = -math.inf
        self._settled_until = self._unsettled

    def expire(self, model: str) -> None:
        """Have a profile read again before it is next used."""
        if (cached := self._cache.get(model)) is not None:
            self._cache[model] = replace(cached, expires=-math.inf)

    def _loaded_window(self, model: str) -> int | None:
        window = self.reported_window(model)
        return window.value if window is not None and window.trust is Trust.LOADED else None

    # -- telling -------------------------------------------------------------------------------------

    def reported_window(self, model: str) -> Fact[int] | None:
        """The window that the backend itself told when it was last asked; None where it told none."""
        cached = self._cache.get(model)
        window = cached.profile.window if cached is not None else None
        return window if window is not None and window.trust > Trust.FALLBACK else None

    def snapshot(self) -> dict[str, Any]:
        """Return what is known now, without asking: JSON with kind, and per model and field value, origin and trust.

        What was learnt also tells in how many seconds it expires.
        """
        known = {listed.id: self._known(listed.id, listed.profile) for listed in self._list}
        known |= {model: self._merged(model, cached.profile) for model, cached in self._cache.items()}
        return {
            "kind": self.known_backend.kind if self.known_backend is not None else None,
            "models": {model: profile.as_json(self.lessons.expires_in(model)) for model, profile in known.items()},
        }

    # -- probing -------------------------------------------------------------------------------------

    async def _once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Share one probe among all who ask for the same; it goes on when the one who began it leaves."""
        task = cast("asyncio.Task[T] | None", self._flights.get(key))
        if task is None:
            task = spawn(make(), name="probe")
            self._flights[key] = task
            task.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(task)

    async def _detect(self) -> None:
        outcome = await self.runner.trace(detect(self.runner.url))
        found, now = outcome.value if outcome.reached else None, self._clock()
        self._settled_until, self._detect_at = self._unsettled, now + COOL_DOWN
        if found is not None and found.kind == "generic":
            # It remains when nothing fits: for a while a backend is believed to be what it was.
            self._odd_since = min(self._odd_since, now)
            if self._last_kind not in {None, "generic"} and now < self._odd_since + DOUBTED:
                found = backend_of(str(self._last_kind))
            elif outcome.complete:
                self._settled_until = now + self._ttl * FIXED_FACTOR
        elif found is not None:
            self._settled_until, self._odd_since = math.inf, math.inf
        self.known_backend = found
        if found is None or self._last_kind == found.kind:
            return
        if self._last_kind is not None:
            self._cache.clear()
            self.lessons.clear()
            self._list, self._list_expires = [], -math.inf
        self._last_kind = found.kind

    async def _read_models(self) -> None:
        backend = await self.backend()
        outcome = await self.runner.trace(backend.models()) if backend is not None else None
        if outcome is not None and (outcome.complete or not self._list):
            self._list = outcome.value
        complete = outcome is not None and outcome.complete
        self._list_expires = self._clock() + (self._ttl if complete else COOL_DOWN)

    async def _load(self, model: str, body: Mapping[str, Any]) -> _Cached:
        self._requested.pop(model, None)
        if (backend := await self.backend()) is not None:
            await self.runner.run(backend.load(model, body))
        cached = await self._read_profile(model)  # not shared with a probe from before the load
        cached = self._cache[model] = replace(cached, unloadable=cached.profile.provisional)
        return cached

    async def _read_profile(self, model: str) -> _Cached:
        backend = await self.backend()
        if backend is None:
            cached = self._stale(model, ModelProfile())
        else:
            outcome = await self.runner.trace(backend.profile(model))
            window = outcome.value.window
            if window is not None and window.value == self._requested.get(model):
                # Loaded as one request wanted it: for any other the model is loaded again.
                outcome = replace(outcome, value=replace(outcome.value, window=None, provisional=True))
            if self._last_loaded and outcome.complete:
                outcome = replace(outcome, value=await self._last_loaded.complete(model, outcome.value))
            cached = self._judged(model, outcome, fixed=backend.fixed_windows)
        doubted = self._cache.get(model)
        if doubted is not None and doubted.doubted and doubted.expires == -math.inf:
            cached = replace(cached, doubted=doubted.profile.window == cached.profile.window)
        self._cache.pop(model, None)
        _bound(self._cache)
        self._cache[model] = cached
        return cached

    def _judged(self, model: str, outcome: Traced[ModelProfile], *, fixed: bool) -> _Cached:
        profile = outcome.value
        if not outcome.complete:
            return self._stale(model, profile)
        # A loaded instance may show that what was learned, of its window or its tools, was true of another one.
        self.lessons.weigh(model, profile)
        seconds = self._ttl * (FIXED_FACTOR if fixed and profile.window is not None else 1)
        return _Cached(profile, self._clock(), self._clock() + seconds, good=True)

    def _stale(self, model: str, default: ModelProfile) -> _Cached:
        cached = self._cache.get(model)
        good = cached is not None and cached.good
        profile = cached.profile if cached is not None and good else default
        return _Cached(profile, self._clock(), self._clock() + COOL_DOWN, good=good)

    # -- merging -------------------------------------------------------------------------------------

    def _known(self, model: str, listed: ModelProfile) -> ModelProfile:
        cached = self._cache.get(model)
        fresh = cached is not None and cached.good and self._clock() < cached.expires
        return self._merged(model, listed, *((cached.profile,) if cached is not None and fresh else ()))

    def _merged(self, model: str, *probed: ModelProfile) -> ModelProfile:
        """Merge what is known; the same facts as last time give the same object, because every request asks."""
        learned = self.lessons.profile(model)
        parts = (*probed, learned)
        last = self._merges.get(model)
        if last is not None and last.parts == parts:  # what is the same object is not looked into
            return last.profile
        profile = merge_profiles(*probed, learned or ModelProfile(), self._overrides(model))
        _bound(self._merges)
        self._merges[model] = _Merged(parts, profile)
        return profile


def _bound(remembered: dict[str, Any]) -> None:
    while len(remembered) >= MOST_MODELS:
        del remembered[next(iter(remembered))]
