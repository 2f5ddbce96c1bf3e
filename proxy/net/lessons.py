"""What refusals taught of models: that they take no tools, or that an answer can't be continued in some way.

An ability tells no number that could be compared with what the server says later, as a window does. So a lesson
is believed for a time, and for as long as the server stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust

LESSON_TTL = 3600.0
"""Seconds a refusal is remembered; then one request finds out whether it still holds."""

_TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A refusal of a way to continue, or of tools (`how` None); `expires` on the clock.

    `listed`: what the backend itself says of the model's tools, in spite of its refusal or in keeping with it.
    """

    how: Continuation | None
    origin: str
    expires: float
    listed: bool | None = None


class Lessons:
    """The lessons of one backend.

    Args:
        ttl: seconds each is believed.
        clock: seconds that never go back.
        most: models remembered.
    """

    def __init__(self, *, ttl: float, clock: Callable[[], float], most: int) -> None:
        self._ttl = ttl
        self._clock = clock
        self._most = most
        self._lessons: dict[str, list[_Lesson]] = {}
        self._profiles: dict[str, ModelProfile] = {}

    def refused_tools(self, model: str, origin: str, *, listed: bool | None) -> None:
        """Note that tools were refused for a model; `listed`: what the backend says of its tools."""
        self._add(model, _Lesson(None, origin, self._clock() + self._ttl, listed))

    def refused_continuation(self, model: str, how: Continuation, origin: str) -> None:
        """Note that this way of continuing was refused for a model."""
        self._add(model, _Lesson(how, origin, self._clock() + self._ttl))

    def told(self, model: str) -> ModelProfile | None:
        """What holds for a model now: the same object for as long as nothing changes, None if there is nothing."""
        lessons = self._lessons.get(model)
        if lessons is None:
            return None
        live = [lesson for lesson in lessons if self._clock() < lesson.expires]
        if len(live) < len(lessons):
            self._keep(model, live)
        return self._profiles.get(model)

    def seconds_left(self, model: str) -> dict[str, float]:
        """Per field of the profile how long it still holds; of several ways to continue, the first to expire."""
        left: dict[str, float] = {}
        for lesson in self._lessons.get(model, ()):
            name = "tools" if lesson.how is None else "refused_continuations"
            left[name] = min(left.get(name, lesson.expires), lesson.expires)
        return {name: max(0.0, expires - self._clock()) for name, expires in left.items()}

    def weigh(self, model: str, *, listed: bool | None) -> None:
        """The backend was asked again: that it now lists tools, and did not before, ends the lesson early."""
        lessons = self._lessons.get(model, [])
        tools = next((lesson for lesson in lessons if lesson.how is None), None)
        if tools is None or tools.listed is listed:
            return
        others = [lesson for lesson in lessons if lesson is not tools]
        self._keep(model, others if listed else [*others, replace(tools, listed=listed)])

    def forget(self, model: str | None = None) -> None:
        """The server may be another one now, or have other flags; `model` None: for all models."""
        for name in (model,) if model is not None else tuple(self._lessons):
            self._keep(name, [])

    def unlearn(self, model: str, what: str) -> bool:
        """Forget that `tools`, or `continuations`, or `all` of them were refused for a model; whether any was forgotten."""
        known = self._lessons.get(model, [])
        left = [
            each for each in known if what not in ("all", "tools" if each.how is None else "continuations")
        ]
        self._keep(model, left)
        return len(left) < len(known)

    def taught(self) -> dict[tuple[str, str], list[Any]]:
        """What holds, by model and `tools` or a way to continue, as JSON: origin, what the backend said of the tools."""
        now = self._clock()
        return {
            (model, _TOOLS if each.how is None else each.how.value): [each.origin, each.listed]
            for model, lessons in self._lessons.items()
            for each in lessons
            if now < each.expires
        }

    def adopt(self, model: str, name: str, taught: list[Any] | None, seconds: float) -> None:
        """Believe for so long what another process has learned; None: that it has given up what it believed.

        Raises:
            ValueError, TypeError: it is nothing that `taught` gives.
        """
        how = None if name == _TOOLS else Continuation(name)
        if taught is None:
            self._keep(model, [each for each in self._lessons.get(model, ()) if each.how is not how])
            return
        origin, listed = taught
        self._add(model, _Lesson(how, str(origin), self._clock() + seconds, listed))

    def _add(self, model: str, new: _Lesson) -> None:
        others = [lesson for lesson in self._lessons.get(model, ()) if lesson.how is not new.how]
        self._keep(model, [*others, new])

    def _keep(self, model: str, lessons: list[_Lesson]) -> None:
        self._lessons.pop(model, None)
        self._profiles.pop(model, None)
        if not lessons:
            return
        while len(self._lessons) >= self._most:
            self._keep(next(iter(self._lessons)), [])
        self._lessons[model] = lessons
        self._profiles[model] = _profile(lessons)


def _profile(lessons: list[_Lesson]) -> ModelProfile:
    told = ModelProfile()
    for lesson in lessons:
        if lesson.how is None:
            told = replace(told, tools=Fact(value=False, origin=lesson.origin, trust=Trust.LEARNED))
            continue
        before = told.refused_continuations or Fact(frozenset(), lesson.origin, Trust.LEARNED)
        told = replace(
            told,
            refused_continuations=replace(before, value=before.value | {lesson.how}, origin=lesson.origin),
        )
    return told
