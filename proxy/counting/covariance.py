"""How far the weights of a model may be off, and which of them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import itemgetter, mul

from proxy.counting.features import BASE, MESSAGES, SIZE, Vector


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """Inner product."""
    total: float = sum(map(mul, a, b))
    return total


class Covariance:
    """The covariance of `SIZE` weights.

    The prompts of a model have about ten features of them all. What was in no prompt so far is independent of the
    rest: only of the features that were met a matrix is kept, and of the others the variances that they began with.
    """

    def __init__(self, variances: Sequence[float]) -> None:
        self._variances = tuple(variances)
        self.met: list[int] = []
        """Features that a prompt has had."""
        self.rows: list[list[float]] = []
        """Their covariance, in the same order."""
        self._meet((BASE, MESSAGES))

    @classmethod
    def restore(cls, whole: Sequence[Sequence[float]]) -> Covariance:
        """Continue with what `whole` gave."""
        kept = cls([row[i] for i, row in enumerate(whole)])
        kept._meet(i for i, row in enumerate(whole) if any(row[:i]) or any(row[i + 1 :]))
        kept.rows = [[whole[i][j] for j in kept.met] for i in kept.met]
        return kept

    def whole(self) -> list[list[float]]:
        """All of it: `SIZE` rows of `SIZE` numbers."""
        rows = [[0.0] * SIZE for _ in range(SIZE)]
        for i, variance in enumerate(self._variances):
            rows[i][i] = variance
        for i, row in zip(self.met, self.rows, strict=True):
            for j, value in zip(self.met, row, strict=True):
                rows[i][j] = value
        return rows

    def part(self, x: Vector) -> tuple[float, ...]:
        """What `x` has of the features in `met`, among which all are then that it has any of."""
        if any(compress(x, self._unmet)):
            self._meet(compress(range(SIZE), x))
        part: tuple[float, ...] = self._pick(x)
        return part

    def times(self, part: Sequence[float]) -> list[float]:
        """The product with what `part` gave."""
        return [sum(map(mul, row, part)) for row in self.rows]

    def variance(self, feature: int) -> float:
        """Of the weight of one feature."""
        if self._unmet[feature]:
            return self._variances[feature]
        at = self._at[feature]
        return self.rows[at][at]

    def widen(self, feature: int, least: float) -> None:
        """Take the weight of a feature to have at least this variance."""
        if self._unmet[feature]:
            self._meet((feature,))
        at = self._at[feature]
        row = self.rows[at]
        row[at] = max(row[at], least)

    def explain(self, gain: Sequence[float], variance: float) -> None:
        """Take out what an observation explains: one of this variance, of which `times` gave `gain`."""
        for row, own in zip(self.rows, gain, strict=True):
            share = own / variance
            row[:] = [a - share * b for a, b in zip(row, gain, strict=False)]

    def drift(self, variances: Iterable[float]) -> None:
        """Add to what is open of each feature in `met`; what is certain stays so."""
        for at, (row, more) in enumerate(zip(self.rows, variances, strict=True)):
            row[at] = row[at] + more if row[at] > 0.0 else 0.0

    def _meet(self, features: Iterable[int]) -> None:
        known = dict(zip(self.met, self.rows, strict=True))
        new = [feature for feature in features if feature not in known]
        for row in self.rows:
            row.extend([0.0] * len(new))
        for feature in new:
            row = [0.0] * (len(known) + len(new))
            row[len(self.met)] = self._variances[feature]
            self.met.append(feature)
            self.rows.append(row)
        self._at = {feature: at for at, feature in enumerate(self.met)}
        self._pick = itemgetter(*self.met)  # two at least, so that it gives a tuple
        self._unmet = [feature not in self.met for feature in range(SIZE)]
