"""Lessons about the models of one backend: windows that errors named or that showed, and refusals.

What an error names is believed at once. What only follows from an estimate has to be seen twice, independently. All of
it expires, yields to a prompt that proves it wrong, and to what the loaded instance newly reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.backends.windows import CutSeen, Filled, window_behind_cut, window_filled
from proxy.store import Store

T = TypeVar("T")

LESSON_TTL = 3600.0
"""Seconds for which a lesson is believed; then one request finds out whether it still holds."""
MOST_SEEN = 8
"""Observations of one model that are remembered until another bears them out."""
HELD_FOR = 300.0
"""Seconds for which a window is no smaller than what was just answered, whatever an error says."""
_NOTHING = 0, 0.0
_ENDED_FAR = 0.7
"""Share of the window before which no answer ends for want of room; Spillway itself bounds none so early."""
_LESSONS = {
    "window": {"window"},
    "tools": {"tools"},
    "continuations": {"refused_continuations"},
    "all": {"window", "tools", "refused_continuations"},
}
"""Fields of a profile by the name of a lesson that users can have forgotten."""


def contradicts(window: int, tokens: int, *, ended: bool) -> bool:
    """Return whether a backend that held so many tokens at once can't have that window; `ended`: for want of room."""
    return tokens > window or (ended and tokens < window * _ENDED_FAR)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A fact; `expires` on the clock. `suspect`: the backend was away in the meantime.

    `listed`: what the backend itself says of the model's tools, in spite of its refusal or in keeping with it.
    """

    fact: Fact[Any]
    expires: float
    listed: bool | None = None
    suspect: bool = False


@dataclass(slots=True)
class _Seen:
    """Observations of one model, newest last, each until a time on the clock."""

    cuts: list[tuple[float, CutSeen]] = field(default_factory=list)
    filled: list[tuple[float, Filled]] = field(default_factory=list)


class LastLoaded:
    """Windows that the models of one backend were last loaded with, in the store, so that they outlast a restart."""

    def __init__(self, store: Store, backend: str) -> None:
        self._store = store
        self._backend = backend

    async def complete(self, model: str, profile: ModelProfile) -> ModelProfile:
        """Store the window of a loaded model; give a model that is not loaded the stored one where its backend names none."""
        key, window = f"loaded|{self._backend}|{model}", profile.window
        stored = await self._store.value(key)
        if window is not None and window.trust is Trust.LOADED:
            if stored != (now := b"%d" % window.value):
                await self._store.value(key, now)
        elif window is None and profile.provisional and stored is not None and stored.isdigit():
            window = Fact(int(stored), "when it was last loaded", Trust.CONFIGURED)
        return replace(profile, window=window)


class Lessons:
    """Facts by model and field of its profile; windows in tokens.

    Args:
        ttl: seconds each is believed, and an observation waits for another.
        clock: seconds that never go back.
        most: models remembered.
    """

    def __init__(self, *, ttl: float, clock: Callable[[], float], most: int) -> None:
        self._ttl = ttl
        self._clock = clock
        self._most = most
        self._lessons: dict[str, Mapping[str, _Lesson]] = {}
        self._profiles: dict[str, ModelProfile] = {}
        self._seen: dict[str, _Seen] = {}
        self._held: dict[str, tuple[int, float]] = {}
        """Tokens, and until when on the clock."""

    def learn_window(self, model: str, window: int, origin: str) -> None:
        """Believe a window; `origin` says in whose words."""
        self._learn(model, "window", Fact(window, origin, Trust.LEARNED))

    def refuse_tools(self, model: str, origin: str, *, listed: bool | None) -> None:
        """Note that tools were refused for a model; `listed`: what the backend says of its tools."""
        self._learn(model, "tools", Fact(value=False, origin=origin, trust=Trust.LEARNED), listed)

    def refuse_continuation(self, model: str, how: Continuation, origin: str) -> None:
        """Note that this way of continuing was refused for a model, besides those that were before."""
        known = self.profile(model)
        before = known.refused_continuations if known is not None else None
        ways = frozenset({how}) if before is None else before.value | {how}
        self._learn(model, "refused_continuations", Fact(ways, origin, Trust.LEARNED))

    def cut(self, model: str, seen: CutSeen, *, loaded: int | None) -> int | None:
        """Note a prompt that seems to have been cut; the window that it brings to light, None for none yet.

        A window that the loaded instance reports needs no other observation, and none stands against it.
        """
        window = window_behind_cut(seen.reported)
        if loaded is not None:
            return loaded if window is not None and window >= loaded else None
        before = self._noted(self._of(model).cuts, seen)
        borne_out = [other for other in before if seen.bears_out(other)]
        if window is None or not borne_out:
            return None
        # A cut leaves less than the window: of several figures the largest is nearest to it.
        return max(window, *(window_behind_cut(other.reported) or window for other in borne_out))

    def filled(self, model: str, seen: Filled) -> int | None:
        """Note an unbounded answer that ended for its length; the window that it shows, None for none yet."""
        return window_filled(seen, self._noted(self._of(model).filled, seen))

    def answered(self, model: str, tokens: int) -> int | None:
        """Note tokens that the backend held at once; the window that this disproves, and that is given up."""
        now = self._clock()
        most, until = self._held.get(model, _NOTHING)
        if tokens >= most or now >= until:
            if len(self._held) >= self._most:
                self._held.clear()
            self._held[model] = tokens, now + HELD_FOR
        learned = self.profile(model)
        if learned is None or learned.window is None or tokens <= learned.window.value:
            return None
        self.unlearn(model, "window")
        return learned.window.value

    def held(self, model: str) -> int:
        """Return the most tokens that the backend held at once of late; 0 for unknown."""
        most, until = self._held.get(model, _NOTHING)
        return most if self._clock() < until else 0

    def weigh(self, model: str, reported: ModelProfile) -> None:
        """Give up what the backend now contradicts: another window of the loaded instance, or tools listed newly."""
        lessons = dict(self._lessons.get(model, {}))
        window, tools = reported.window, reported.tools
        if (learned := lessons.get("window")) is not None:
            loaded = window.value if window is not None and window.trust is Trust.LOADED else None
            if learned.suspect or loaded not in {None, learned.fact.value}:
                del lessons["window"]
        listed = tools.value if tools is not None else None
        if (refused := lessons.pop("tools", None)) is not None and not (listed and not refused.listed):
            lessons["tools"] = replace(refused, listed=listed)
        self._store(model, lessons)

    def suspect(self, model: str | None = None) -> None:
        """Doubt all, or what is known of a model: the server may be another one now, or have other flags.

        A window holds until the server says otherwise, refusals do no longer.
        """
        for name in {*self._lessons, *self._seen, *self._held} if model is None else {model}:
            self._seen.pop(name, None)
            self._held.pop(name, None)
            window = self._lessons.get(name, {}).get("window")
            self._store(name, {} if window is None else {"window": replace(window, suspect=True)})

    def unlearn(self, model: str, lesson: str) -> bool:
        """Forget a lesson about a model: `window`, `tools`, `continuations`, or `all`; whether any was forgotten."""
        lessons = self._lessons.get(model, {})
        if "window" in _LESSONS[lesson]:
            self._seen.pop(model, None)
        others = {name: each for name, each in lessons.items() if name not in _LESSONS[lesson]}
        self._store(model, others)
        return len(others) < len(lessons)

    def clear(self) -> None:
        """Forget everything: it is another server."""
        for known in (self._lessons, self._profiles, self._seen, self._held):
            known.clear()

    def profile(self, model: str) -> ModelProfile | None:
        """Return the facts that hold now: the same object for as long as nothing changes."""
        lessons, now = self._lessons.get(model, {}), self._clock()
        if any(now >= lesson.expires for lesson in lessons.values()):
            self._store(model, {name: each for name, each in lessons.items() if now < each.expires})
        return self._profiles.get(model)

    def expires_in(self, model: str) -> dict[str, float]:
        """Return per field of the profile how long its lesson still holds."""
        now = self._clock()
        return {name: max(0.0, each.expires - now) for name, each in self._lessons.get(model, {}).items()}

    def _learn(self, model: str, name: str, fact: Fact[Any], listed: bool | None = None) -> None:  # noqa: FBT001 - a fact
        lessons = {**self._lessons.get(model, {}), name: _Lesson(fact, self._clock() + self._ttl, listed)}
        self._lessons.pop(model, None)
        while len(self._lessons) >= self._most:
            self._store(next(iter(self._lessons)), {})
        self._store(model, lessons)

    def _store(self, model: str, lessons: Mapping[str, _Lesson]) -> None:
        if lessons == self._lessons.get(model, {}):
            return
        self._lessons.pop(model, None)
        self._profiles.pop(model, None)
        if lessons:
            self._lessons[model] = lessons
            facts: dict[str, Any] = {name: each.fact for name, each in lessons.items()}
            self._profiles[model] = ModelProfile(**facts)

    def _of(self, model: str) -> _Seen:
        seen = self._seen.pop(model, None) or _Seen()
        while len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        self._seen[model] = seen
        return seen

    def _noted(self, seen: list[tuple[float, T]], new: T) -> list[T]:
        """Note an observation; those before it that still count."""
        now = self._clock()
        live = [entry for entry in seen if now < entry[0]][-MOST_SEEN + 1 :]
        seen[:] = [*live, (now + self._ttl, new)]
        return [entry[1] for entry in live]
