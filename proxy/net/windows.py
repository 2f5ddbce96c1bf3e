"""Windows that were learned: from errors that named them, from prompts that were cut, from answers that filled them.

What an error names is believed at once. What only follows from an estimate has to be seen twice, independently. All of
it expires, yields to a prompt that proves it wrong, and to the loaded instance whenever that reports another window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from proxy.backends.profile import Fact, ModelProfile, Trust
from proxy.counting.filling import Filled, window_filled
from proxy.counting.truncation import CutSeen, window_behind_cut
from proxy.history.checkpoint import Store

T = TypeVar("T")

LESSON_TTL = 3600.0
"""Seconds for which what was learned of a model is believed."""
MOST_SEEN = 8
"""Observations of one model that are remembered until another bears them out."""
HELD_FOR = 300.0
"""Seconds for which a window is no smaller than what was just answered, whatever an error says."""
_NOTHING = 0, 0.0
_ENDED_FAR = 0.7
"""Share of the window before which no answer ends for want of room; Spillway itself bounds none so early."""


def contradicts(window: int, tokens: int, *, ended: bool) -> bool:
    """Whether a backend that held so many tokens at once can't have that window; `ended`: for want of room."""
    return tokens > window or (ended and tokens < window * _ENDED_FAR)


@dataclass(slots=True)
class _Learned:
    """A window; `expires` is on the clock. `suspect`: the backend was away in the meantime."""

    fact: Fact[int]
    expires: float
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


class LearnedWindows:
    """The learned windows of one backend; all in tokens.

    Args:
        ttl: seconds each is believed, and an observation waits for another.
        clock: seconds that never go back.
        most: models remembered.
    """

    def __init__(self, *, ttl: float, clock: Callable[[], float], most: int) -> None:
        self._ttl = ttl
        self._clock = clock
        self._most = most
        self._learned: dict[str, _Learned] = {}
        self._seen: dict[str, _Seen] = {}
        self._held: dict[str, tuple[int, float]] = {}
        """Tokens, and until when on the clock."""

    # -- what teaches

    def named(self, model: str, window: int, origin: str) -> None:
        """Believe a window; `origin` says in whose words."""
        fact = Fact(window, origin, Trust.LEARNED)
        self._learned.pop(model, None)
        while len(self._learned) >= self._most:
            del self._learned[next(iter(self._learned))]
        self._learned[model] = _Learned(fact, self._clock() + self._ttl)

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
        """Note an unbounded answer that ended for its length; the window that it tells, None for none yet."""
        return window_filled(seen, self._noted(self._of(model).filled, seen))

    # -- what ends it

    def answered(self, model: str, tokens: int) -> int | None:
        """Note tokens that the backend held at once; the window that this disproves, and that is given up."""
        now = self._clock()
        most, until = self._held.get(model, _NOTHING)
        if tokens >= most or now >= until:
            if len(self._held) >= self._most:
                self._held.clear()
            self._held[model] = tokens, now + HELD_FOR
        learned = self._learned.get(model)
        if learned is None or tokens <= learned.fact.value:
            return None
        del self._learned[model]
        return learned.fact.value

    def held(self, model: str) -> int:
        """Most tokens that the backend held at once of late; 0 for unknown."""
        most, until = self._held.get(model, _NOTHING)
        return most if self._clock() < until else 0

    def weigh(self, model: str, window: Fact[int] | None) -> None:
        """Give up what was learned of another instance, or what the loaded one contradicts with the window it reports."""
        learned = self._learned.get(model)
        if learned is None:
            return
        contradicted = (
            window is not None and window.trust is Trust.LOADED and window.value != learned.fact.value
        )
        if learned.suspect or contradicted:
            del self._learned[model]

    def suspect(self, model: str | None = None) -> None:
        """The server may be another one now: what is known holds until it says otherwise. `model` None: of all."""
        for name in {*self._learned, *self._seen, *self._held} if model is None else {model}:
            self._seen.pop(name, None)
            self._held.pop(name, None)
            if (learned := self._learned.get(name)) is not None:
                learned.suspect = True

    def unlearn(self, model: str) -> bool:
        """Forget the window of a model, and what was seen of it; whether one was forgotten."""
        self._seen.pop(model, None)
        return self._learned.pop(model, None) is not None

    def clear(self) -> None:
        """It is another server."""
        self._learned.clear()
        self._seen.clear()
        self._held.clear()

    # -- what holds

    def told(self, model: str) -> Fact[int] | None:
        """The window that is believed now: the same object for as long as nothing changes."""
        learned = self._learned.get(model)
        if learned is None:
            return None
        if self._clock() < learned.expires:
            return learned.fact
        del self._learned[model]
        return None

    def seconds_left(self, model: str) -> dict[str, float]:
        """How long the window still holds, by its field of the profile; empty if none was learned."""
        learned = self._learned.get(model)
        return {} if learned is None else {"window": max(0.0, learned.expires - self._clock())}

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
