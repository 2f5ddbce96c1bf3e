"""How the context window is divided: arithmetic only, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from proxy.core.managing import CompactionRequest
from proxy.core.settings import DEFAULT_TARGET, DEFAULT_TRIGGER, Settings

_SAFE = 0.97
"""Share of the window that the upper bound of a prompt may fill: a prompt of exactly the window is refused
(llama.cpp b11549 accepts n_ctx - 1), and an answer needs room."""


_FIXED = 2 / 3
"""Share of the target that what can't be shortened may take before the other figures follow what is left."""
_ENOUGH = 0.45
"""How far from the target to the trigger a prompt may be left by what costs no model's time."""
_CLOSEST = 0.95
"""Share of the trigger that a target may be at most: a compaction has to gain something."""
_DEEP = 1 / 4
"""Share of what is left that a compaction comes down to then."""


@dataclass(frozen=True, kw_only=True)
class ContextBudget:
    """One model's window in tokens and the fractions of it at which Spillway acts. Many requests share one.

    `fixed` are tokens of what no compaction touches: system prompt, tools, the template. Where they take most of the
    target, trigger and target move up into what they leave: a compaction would else be due again at once. `within` are the
    tokens of a smaller window, in which prompts are to stay; None: they may use all of it.
    """

    window: int
    trigger: float = 0.8
    target: float = 0.5
    pause: float = 0.9
    fixed: int = 0
    within: int | None = None

    @cached_property
    def zone(self) -> int:
        """Tokens of the window in which prompts are to stay: twice what can't be shortened, if they are to stay in less."""
        return self.window if self.within is None else min(self.window, max(self.within, 2 * self.fixed))

    @cached_property
    def is_tight(self) -> bool:
        """Whether what can't be shortened takes so much that the rest is managed within what it leaves."""
        return self.fixed > self.zone * self.target * _FIXED

    @cached_property
    def goal(self) -> int:
        """Prompt tokens to come down to when compacting."""
        aimed = self.zone * self.target
        return int(max(aimed, self.fixed + (self.zone - self.fixed) * _DEEP) if self.is_tight else aimed)

    @property
    def enough(self) -> int:
        """Prompt tokens at which no model has to be asked: far enough below the trigger for several steps."""
        between = self.target + (self.trigger - self.target) * _ENOUGH
        return max(self.goal, int(self.zone * between))

    @cached_property
    def due(self) -> float:
        """Prompt tokens at which a compaction is due."""
        base = self.zone * self.trigger
        remaining = self.fixed + (self.zone - self.fixed) * self.trigger
        return max(base, min(self.ceiling, remaining)) if self.is_tight else base

    @cached_property
    def limit(self) -> int:
        """Prompt tokens that surely fit."""
        return int(self.window * _SAFE)

    @cached_property
    def pause_point(self) -> int:
        """Prompt and completion tokens together at which a running answer is paused."""
        return int(self.window * self.pause)

    @property
    def brim(self) -> int:
        """Prompt tokens up to which a prompt may be filled for one turn: an answer has as much room as it has without that."""
        return int(self.due)

    @cached_property
    def ceiling(self) -> int:
        """Prompt tokens up to which a prompt that was filled for one turn may grow in it."""
        return int(self.zone * (self.trigger + self.pause) / 2)

    def fill(self, tokens: float) -> float:
        """Tokens as a fraction of the window."""
        return tokens / self.window

    def needs_compaction(self, tokens: int, upper: int, *, passing: int = 0) -> bool:
        """Whether a prompt is due, by its best estimate, or might not fit, by its upper bound.

        `passing` of the tokens are there for this turn alone.
        """
        return tokens - passing >= self.due or upper > self.limit or (passing > 0 and tokens > self.ceiling)

    def requested_goal(self, tokens: int, wanted: CompactionRequest | None, *, hands_over: bool) -> int | None:
        """Return the prompt tokens to compact a prompt of `tokens` to on the client's request; None: not, or not yet.

        `hands_over`: the client asks for a compaction of its own, of a history that is due.
        """
        if hands_over:
            # As much as may be is read as it is, and room is left for a long answer.
            return int(self.zone * (self.target + self.trigger) / 2)
        if wanted is None:
            return None
        if wanted.now:
            return min(self.goal, int(tokens * self.target))
        if wanted.trigger is None or tokens < wanted.trigger:
            return None
        return min(self.goal, int(wanted.trigger * self.target))


def budget_for(settings: Settings, window: int, fixed: int = 0) -> ContextBudget:
    """Return the budget for a window of so many tokens, of which `fixed` can't be shortened.

    A trigger or target in tokens counts where it is less than the usual share. A target that is a share keeps its distance
    from a trigger in tokens. The three stay in order, whatever several globs for a model come to.
    """
    within, trigger = None, min(settings.trigger, settings.pause)
    if settings.trigger > 1:
        trigger = min(DEFAULT_TRIGGER, settings.pause)
        if settings.trigger < window * trigger:
            within = max(1, int(settings.trigger / trigger))
    target = settings.target
    if target > 1:
        target = min(min(target, window * DEFAULT_TARGET) / (within or window), trigger * _CLOSEST)
    elif target >= trigger:
        target = trigger * _CLOSEST
    return _budget(window, trigger, target, settings.pause, fixed, within)


@lru_cache(maxsize=256)
def _budget(window: int, trigger: float, target: float, pause: float, fixed: int, within: int | None) -> ContextBudget:
    return ContextBudget(window=window, trigger=trigger, target=target, pause=pause, fixed=fixed, within=within)
