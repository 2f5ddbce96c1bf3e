"""How the context window is divided: arithmetic only, in tokens."""

from __future__ import annotations

from dataclasses import dataclass

_SAFE = 0.97
"""Share of the window that the upper bound of a prompt may fill: a prompt of exactly the window is refused
(llama.cpp b11549 accepts n_ctx - 1), and an answer needs room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """One model's window in tokens and the fractions of it at which Spillway acts."""

    window: int
    trigger: float = 0.8
    target: float = 0.5
    pause: float = 0.9

    @property
    def goal(self) -> int:
        """Prompt tokens to come down to when compacting."""
        return int(self.window * self.target)

    @property
    def limit(self) -> int:
        """Prompt tokens that surely fit."""
        return int(self.window * _SAFE)

    @property
    def pause_point(self) -> int:
        """Prompt and completion tokens together at which a running answer is paused."""
        return int(self.window * self.pause)

    @property
    def brim(self) -> int:
        """Prompt tokens up to which a prompt may be filled for one turn: an answer has as much room as it has without that."""
        return int(self.window * self.trigger)

    @property
    def ceiling(self) -> int:
        """Prompt tokens up to which a prompt that was filled for one turn may grow in it."""
        return int(self.window * (self.trigger + self.pause) / 2)

    def fill(self, tokens: float) -> float:
        """Tokens as a fraction of the window."""
        return tokens / self.window

    def needs_compaction(self, tokens: int, upper: int, *, passing: int = 0) -> bool:
        """Whether a prompt is due, by its best estimate, or might not fit, by its upper bound.

        `passing` of the tokens are there for this turn alone.
        """
        due = tokens - passing >= self.window * self.trigger
        return due or upper > self.limit or (passing > 0 and tokens > self.ceiling)
