"""What refusals taught of models: that they take no tools, or that an answer can't be continued in some way.

An ability tells no number that could be compared with what the server says later, as a window does. So a refusal
is believed for a time, and for as long as the server stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust


@dataclass(frozen=True, slots=True)
class _Refused:
    """A refusal of a way to continue, or of tools (`how` None); `expires` on the clock.

    `listed`: what the backend itself says of the model's tools, in spite of its refusal or in keeping with it.
    """

    how: Continuation | None
    origin: str
    expires: float
    listed: bool | None = None


class LearnedRefusals:
    """The learned refusals of one backend.

    Args:
        ttl: seconds each is believed; then one request finds out whether it still holds.
        clock: seconds that never go back.
        most: models remembered.
    """

    def __init__(self, *, ttl: float, clock: Callable[[], float], most: int) -> None:
        self._ttl = ttl
        self._clock = clock
        self._most = most
        self._refusals: dict[str, list[_Refused]] = {}
        self._profiles: dict[str, ModelProfile] = {}

    def refused_tools(self, model: str, origin: str, *, listed: bool | None) -> None:
        """Note that tools were refused for a model; `listed`: what the backend says of its tools."""
        self._add(model, _Refused(None, origin, self._clock() + self._ttl, listed))

    def refused_continuation(self, model: str, how: Continuation, origin: str) -> None:
        """Note that this way of continuing was refused for a model."""
        self._add(model, _Refused(how, origin, self._clock() + self._ttl))

    def told(self, model: str) -> ModelProfile | None:
        """What holds for a model now: the same object for as long as nothing changes, None if there is nothing."""
        refusals = self._refusals.get(model)
        if refusals is None:
            return None
        live = [refusal for refusal in refusals if self._clock() < refusal.expires]
        if len(live) < len(refusals):
            self._keep(model, live)
        return self._profiles.get(model)

    def seconds_left(self, model: str) -> dict[str, float]:
        """Per field of the profile how long it still holds; of several ways to continue, the first to expire."""
        left: dict[str, float] = {}
        for refusal in self._refusals.get(model, ()):
            name = "tools" if refusal.how is None else "refused_continuations"
            left[name] = min(left.get(name, refusal.expires), refusal.expires)
        return {name: max(0.0, expires - self._clock()) for name, expires in left.items()}

    def weigh(self, model: str, *, listed: bool | None) -> None:
        """The backend was asked again: that it now lists tools, and did not before, ends the refusal early."""
        refusals = self._refusals.get(model, [])
        tools = next((refusal for refusal in refusals if refusal.how is None), None)
        if tools is None or tools.listed is listed:
            return
        others = [refusal for refusal in refusals if refusal is not tools]
        self._keep(model, others if listed else [*others, replace(tools, listed=listed)])

    def forget(self, model: str | None = None) -> None:
        """The server may be another one now, or have other flags; `model` None: for all models."""
        for name in (model,) if model is not None else tuple(self._refusals):
            self._keep(name, [])

    def unlearn(self, model: str, what: str) -> bool:
        """Forget that `tools`, or `continuations`, or `all` of them were refused for a model; whether any was forgotten."""
        known = self._refusals.get(model, [])
        left = [
            each for each in known if what not in ("all", "tools" if each.how is None else "continuations")
        ]
        self._keep(model, left)
        return len(left) < len(known)

    def _add(self, model: str, new: _Refused) -> None:
        others = [refusal for refusal in self._refusals.get(model, ()) if refusal.how is not new.how]
        self._keep(model, [*others, new])

    def _keep(self, model: str, refusals: list[_Refused]) -> None:
        self._refusals.pop(model, None)
        self._profiles.pop(model, None)
        if not refusals:
            return
        while len(self._refusals) >= self._most:
            self._keep(next(iter(self._refusals)), [])
        self._refusals[model] = refusals
        self._profiles[model] = _profile(refusals)


def _profile(refusals: list[_Refused]) -> ModelProfile:
    told = ModelProfile()
    for refusal in refusals:
        if refusal.how is None:
            told = replace(told, tools=Fact(value=False, origin=refusal.origin, trust=Trust.LEARNED))
            continue
        before = told.refused_continuations or Fact(frozenset(), refusal.origin, Trust.LEARNED)
        told = replace(
            told,
            refused_continuations=replace(before, value=before.value | {refusal.how}, origin=refusal.origin),
        )
    return told
