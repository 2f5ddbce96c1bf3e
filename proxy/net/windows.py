"""Windows that were learned: from errors that named them, from prompts that were cut, from answers that filled them.

What an error names is believed at once. What only follows from an estimate has to be seen twice, independently. All of
it expires, yields to a prompt that proves it wrong, and to a loaded instance that says something new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from proxy.backends.profile import Fact, ModelProfile, Trust
from proxy.counting.filling import Filled, window_filled
from proxy.counting.truncation import CutSeen, window_behind_cut
from proxy.history.checkpoint import LearnedState

T = TypeVar("T")

WINDOW = "window"
"""What a lesson about a window is called."""
MOST_SEEN = 8
"""Observations of one model that are remembered until another bears them out."""
_ENDED_FAR = 0.7
"""Share of the window before which no answer ends for want of room; Spillway itself bounds none so early."""


def contradicts(window: int, tokens: int, *, ended: bool) -> bool:
    """Whether a backend that held so many tokens at once can't have that window; `ended`: for want of room."""
    return tokens > window or (ended and tokens < window * _ENDED_FAR)


@dataclass(slots=True)
class _Learned:
    """A window, and what the loaded instance said of itself when it was learned, `against` (None: nothing).

    `expires` is on the clock. `suspect`: the backend was away in the meantime.
    """

    fact: Fact[int]
    against: int | None
    expires: float
    suspect: bool = False


@dataclass(slots=True)
class _Seen:
    """What was seen of one model, newest last; each until a time on the clock, and against what was loaded then."""

    cuts: list[tuple[float, int | None, CutSeen]] = field(default_factory=list)
    filled: list[tuple[float, int | None, Filled]] = field(default_factory=list)


class LastLoaded:
    """Windows that the models of one backend were last loaded with, in the store, so that they outlast a restart."""

    def __init__(self, store: LearnedState, backend: str) -> None:
        self._store = store
        self._backend = backend

    async def complete(self, model: str, profile: ModelProfile) -> ModelProfile:
        """Store the window of a loaded model; give a model that is not loaded the stored one where its backend names none."""
        key, window = f"loaded|{self._backend}|{model}", profile.window
        stored = await self._store.get_state(key)
        if window is not None and window.trust is Trust.LOADED:
            if stored != (now := b"%d" % window.value):
                await self._store.put_state(key, now)
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

    # -- what teaches

    def named(self, model: str, window: int, origin: str, *, loaded: int | None) -> None:
        """Believe a window; `origin` says in whose words, `loaded` is what the loaded instance says of itself."""
        fact = Fact(window, origin, Trust.LEARNED)
        self._learned.pop(model, None)
        while len(self._learned) >= self._most:
            del self._learned[next(iter(self._learned))]
        self._learned[model] = _Learned(fact, loaded, self._clock() + self._ttl)

    def cut(self, model: str, seen: CutSeen, *, loaded: int | None) -> int | None:
        """Note a prompt that seems to have been cut; the window that it brings to light, None for none yet.

        A window that the loaded instance says itself needs no other observation.
        """
        before = self._noted(self._of(model).cuts, seen, loaded)
        window = window_behind_cut(seen.reported)
        if window is None:
            return None
        if loaded is not None and window >= loaded:
            return loaded
        borne_out = [other for other in before if seen.bears_out(other)]
        if not borne_out:
            return None
        # A cut leaves less than the window: of several figures the largest is nearest to it.
        most = max(window, *(window_behind_cut(other.reported) or window for other in borne_out))
        return most if loaded is None else min(most, loaded)

    def filled(self, model: str, seen: Filled) -> int | None:
        """Note an unbounded answer that ended for its length; the window that it tells, None for none yet."""
        return window_filled(seen, self._noted(self._of(model).filled, seen, None))

    # -- what ends it

    def answered(self, model: str, tokens: int) -> int | None:
        """The backend held so many tokens at once; the window that this disproves, and that is given up."""
        learned = self._learned.get(model)
        if learned is None or tokens <= learned.fact.value:
            return None
        del self._learned[model]
        return learned.fact.value

    def weigh(self, model: str, window: Fact[int] | None) -> None:
        """The backend was asked again, and tells this window: what does not go with it is given up.

        That is what was learned of another instance, and what is more than the loaded one says once more that it has.
        """
        learned = self._learned.get(model)
        if learned is None:
            return
        if learned.suspect:
            del self._learned[model]
        elif window is not None and window.trust is Trust.LOADED:
            same = window.value == (learned.fact.value if learned.against is None else learned.against)
            if same and learned.fact.value <= window.value:
                learned.against = window.value
            else:
                del self._learned[model]

    def suspect(self, model: str | None = None) -> None:
        """The server may be another one now: what is known holds until it says otherwise. `model` None: of all."""
        for name in {*self._learned, *self._seen} if model is None else {model}:
            self._seen.pop(name, None)
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

    # -- what others are told, and tell

    def taught(self) -> dict[tuple[str, str], list[Any]]:
        """What is believed, by model and `window`, as JSON: tokens, origin, what the loaded instance said of itself."""
        now = self._clock()
        return {
            (model, WINDOW): [each.fact.value, each.fact.origin, each.against]
            for model, each in self._learned.items()
            if now < each.expires
        }

    def adopt(self, model: str, taught: list[Any] | None, seconds: float) -> None:
        """Believe for so long what another process has learned; None: that it has given up what it believed.

        Raises:
            ValueError, TypeError: it is nothing that `taught` gives.
        """
        if taught is None:
            self._learned.pop(model, None)
            return
        window, origin, against = taught
        self.named(model, int(window), str(origin), loaded=None if against is None else int(against))
        self._learned[model].expires = self._clock() + seconds

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

    def _noted(self, seen: list[tuple[float, int | None, T]], new: T, loaded: int | None) -> list[T]:
        """Note an observation; those before it that still count, made of the same loaded instance."""
        now = self._clock()
        live = [entry for entry in seen if now < entry[0] and entry[1] == loaded][-MOST_SEEN + 1 :]
        seen[:] = [*live, (now + self._ttl, loaded, new)]
        return [entry[2] for entry in live]
