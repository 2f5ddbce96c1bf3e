"""How much to add to an estimate so that the truth stays below it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

WINDOW = 128
"""Errors that are remembered."""
SPREAD = 0.02
"""Relative error to be reckoned with when the weights are certain."""
ROUNDING = 4.0
"""Variance of a count in tokens²."""
ROOM = 8
"""Tokens added in any case."""
FLOOR = 1.0
EARLY_FACTOR = 3.0
QUANTILE = 0.98


@dataclass(slots=True)
class Margin:
    """How many times its own scale a prediction may be too low: a quantile of the errors seen lately.

    The scale of a prediction is what its weights leave open and `SPREAD` of it. `early` (a fraction of the
    prediction) is added until `enough` errors have been seen, and `floor` is the least factor.
    """

    early: float
    enough: int
    floor: float = FLOOR
    quantile: float = QUANTILE
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """(reported - predicted) / scale."""
    factor: float = field(default=0.0)
    """As of the last error."""
    _ordered: list[float] = field(default_factory=list)
    """The same errors, smallest first."""

    def __post_init__(self) -> None:
        self.restore(tuple(self.errors))

    def scale(self, predicted: float, deviation: float) -> float:
        """How far off a prediction is likely to be, in tokens."""
        return math.sqrt(deviation * deviation + (SPREAD * predicted) ** 2 + ROUNDING)

    def of(self, predicted: float, deviation: float) -> float:
        """Tokens to add to a prediction."""
        margin = self.factor * self.scale(predicted, deviation) + ROOM
        return margin if len(self.errors) >= self.enough else max(margin, self.early * abs(predicted))

    def learn(self, error: float) -> None:
        """Take in one error, in units of the scale of its prediction."""
        if len(self.errors) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self.errors[0])]
        self.errors.append(error)
        insort(self._ordered, error)
        self.factor = self._factor()

    def restore(self, errors: Iterable[float]) -> None:
        """Continue with errors that were kept."""
        self.errors.clear()
        self.errors.extend(errors)
        self._ordered = sorted(self.errors)
        self.factor = self._factor()

    def _factor(self) -> float:
        ordered = self._ordered
        if len(ordered) < self.enough:
            return max(EARLY_FACTOR, self.floor)
        return max(self.floor, ordered[min(len(ordered) - 1, int(self.quantile * len(ordered)))])
