"""Recursive least squares from features to tokens, one per backend and model.

The weights start from what is typical and move with every prompt whose token count a backend reports. Errors
are relative (a prompt of 100 tokens teaches as much as one of 100,000), outliers are clipped, and the
covariance grows a little with every update, so that a model which changes behind its name is followed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import mul

from proxy.counting.covariance import Covariance, dot
from proxy.counting.features import (
    ASCII_CLASSES,
    BASE,
    CALLS,
    FIRST,
    IMAGE_TOKENS,
    IMAGES,
    MESSAGES,
    REASONING,
    SCHEMA,
    SCRIPTS,
    SIZE,
    TEXT,
    TEXT_SIZE,
    TOOLS,
    Vector,
)

NOISE = 0.02**2
"""Variance of the relative error that no weight explains."""
ROUNDING = 4.0
"""Variance in tokens² of a count: merges across the borders of texts."""
CLIP = 4.0
"""Standard deviations to which an error is cut before it moves the weights."""
DRIFT = 1e-6
"""Variance that each weight gains with an update, relative to its square."""
LEAST_SCALE = 0.02
"""Least weight that `DRIFT` reckons with."""
UNINFORMATIVE = 0.02
"""An update whose evidence is this small against the noise is left out when the prediction was right."""
SURPRISE = 3.0
"""Standard deviations from which an error is a surprise."""
PRESENT = 0.05
"""Lead bytes per token from which a script is present."""
PAIRS_OF_SPACES = TEXT_SIZE - 1

_GENERAL = (
    *(0.903, 0.222, 0.014, 0.018, 0.304, 0.006),
    *(
        -0.152,
        -0.071,
        -0.015,
        0.103,
        -0.060,
        0.062,
        0.0,
        0.018,
        -0.116,
        -0.061,
        -0.220,
        -0.180,
        -0.164,
        -0.035,
        -0.176,
    ),
    *(-0.026, -0.039),
)
"""Text weights for a model of which nothing is known, on the general vocabulary: fitted to ten vocabularies at once, on GNOME's
help in 35 languages, chats, code and data, and shrunk to one token for each. Cold estimates of Debian's handbook in 24 languages,
which was held out, are off by 8.9 % of those ten (10.4 % from the whole of o200k with one token for each)."""
# Standard deviations of the text weights, in the order of the features: at the start without and with a prior, and
# after a surprise. Narrow ones are those in which vocabularies differ little; simulated over 9 vocabularies.
_TEXT_DEVIATIONS = (0.15, 0.2, 0.03, 0.1, 0.2, 0.15, *([0.3] * len(SCRIPTS)), 0.03, 0.5)
_PRIOR_DEVIATIONS = (0.08, 0.1, 0.03, 0.05, 0.15, 0.08, *([0.2] * len(SCRIPTS)), 0.03, 0.3)
_DOUBT = (0.15, 0.2, 0.03, 0.03, 0.1, 0.03, *([0.3] * len(SCRIPTS)), 0.03, 0.3)


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Weights before the first report, and how far each may be off (standard deviation)."""

    weights: tuple[float, ...]
    deviations: tuple[float, ...]


def start(*, exact: bool, prior: Sequence[float] = ()) -> InitialWeights:
    """Where a model begins.

    Args:
        exact: the vocabulary is the model's own: one token counts one, byte classes count nothing.
        prior: weights fitted to the family, for a vocabulary that is not its own: of all text features, or see `spread`.
    """
    weights, deviations = [0.0] * SIZE, [0.0] * SIZE
    if exact:
        weights[BASE], deviations[BASE] = 1.0, 0.001
    else:
        weights[:TEXT_SIZE] = _all_of(prior) if prior else _GENERAL
        deviations[:TEXT_SIZE] = _PRIOR_DEVIATIONS if prior else _TEXT_DEVIATIONS
    for index, weight, deviation in (
        (MESSAGES, 5.0, 3.0),
        (CALLS, 25.0, 10.0),
        (REASONING, 0.5, 0.5),
        (IMAGES, 0.0, 50.0),
        (IMAGE_TOKENS, 1.0, 0.5),
        (FIRST, 8.0, 20.0),
        (TOOLS, 1.15, 0.35),
        (SCHEMA, 1.0, 0.5),
    ):
        weights[index], deviations[index] = weight, deviation
    return InitialWeights(tuple(weights), tuple(deviations))


def _all_of(prior: Sequence[float]) -> Sequence[float]:
    return prior if len(prior) == TEXT_SIZE else spread(prior)


def spread(prior: Sequence[float]) -> tuple[float, ...]:
    """Weights of the text features from the 17 of a prior, which knows fewer classes.

    In order: tokens, digits, letters, spaces, newlines and tabs, punctuation, then characters by first byte
    C2-CB, CC-D4, D5-DF, E0-E1, E2, E3, E4-E9, EA-ED, EE-EF, F0-F4, then upper-case letters.
    """
    latin, cyrillic, semitic, indic = prior[6:10]
    return (
        *(*prior[:6], latin, cyrillic, cyrillic, semitic, semitic),
        *(indic, indic, indic, indic, *prior[10:17], 0.0),
    )


@dataclass(slots=True)
class Calibration:
    """Weights and their covariance."""

    weights: list[float]
    covariance: Covariance

    @classmethod
    def begin(cls, begin: InitialWeights) -> Calibration:
        """Start from weights and deviations that are independent of one another."""
        return cls(list(begin.weights), Covariance([deviation**2 for deviation in begin.deviations]))

    @classmethod
    def restore(cls, weights: Sequence[float], covariance: Sequence[Sequence[float]]) -> Calibration:
        """Continue with values that were kept.

        Raises:
            ValueError, TypeError: they are not finite numbers of the right shape.
        """
        rows = [[float(value) for value in row] for row in covariance]
        line = [float(value) for value in weights]
        if [len(line), *map(len, rows)] != [SIZE] * (SIZE + 1):
            raise ValueError("weights of another shape")
        if not all(math.isfinite(value) for row in (line, *rows) for value in row):
            raise ValueError("weights that are no numbers")
        return cls(line, Covariance.restore(rows))

    def predict(self, x: Vector) -> float:
        """Tokens of what has features `x`.

        The text and its turns stay within half and five times `BASE`, whatever the weights learned.
        """
        base = x[BASE]
        text = dot(self.weights, x[TEXT])  # as far as that goes
        if base >= 0:  # a system message that became shorter makes it negative
            text = min(max(text, 0.5 * base), 5.0 * base + 10.0 * x[MESSAGES])
        return text + max(0.0, dot(self.weights[MESSAGES + 1 :], x[MESSAGES + 1 :]))

    @property
    def bare(self) -> float:
        """The same as `predict` of a request without messages or tools: what its template begins with."""
        return max(0.0, self.weights[FIRST])

    def deviation(self, x: Vector) -> float:
        """How far `predict(x)` may be off for want of evidence: one standard deviation, in tokens."""
        return math.sqrt(max(0.0, self._told_by(x, 1.0)[1]))

    def update(self, x: Vector, tokens: float) -> float:
        """Learn that what has features `x` took `tokens` (> 0) tokens; `deviation(x)` as it was before that."""
        scale = 1.0 / tokens
        gain, information = self._told_by(x, scale)
        deviation = math.sqrt(max(0.0, information)) * tokens
        noise = NOISE + ROUNDING * scale * scale
        error = 1.0 - dot(self.weights, x) * scale
        if information < UNINFORMATIVE * noise and error * error < noise:
            return deviation
        if error * error > SURPRISE * SURPRISE * (information + noise):
            self._doubt(x, tokens)
            gain, information = self._told_by(x, scale)
        self._apply(gain, information + noise, error)
        return deviation

    def _told_by(self, x: Vector, scale: float) -> tuple[list[float], float]:
        """How each weight goes with what `scale` times `x` takes, and the variance of that."""
        part = [*map(mul, self.covariance.part(x), repeat(scale))]
        gain = self.covariance.times(part)
        return gain, dot(gain, part)

    def widen(self) -> None:
        """Take what was learned of texts as a guess again: the model seems to have changed."""
        for i in range(TEXT_SIZE):
            self.covariance.widen(i, _DOUBT[i] ** 2)

    def _doubt(self, x: Vector, tokens: float) -> None:
        """Widen what is believed of the scripts in a text whose count was a surprise: it is one of them.

        A class of bytes holds several scripts, and a model may know one of them and not its neighbour.
        """
        if not self.covariance.variance(ASCII_CLASSES[0]):
            return  # the vocabulary is the model's own, and byte classes count nothing
        present = [i for i in SCRIPTS if x[i] > PRESENT * tokens]
        for i in present or (BASE, *ASCII_CLASSES, PAIRS_OF_SPACES):
            self.covariance.widen(i, (_DOUBT[i] if present else 0.3 * _DOUBT[i]) ** 2)

    def _apply(self, gain: list[float], variance: float, error: float) -> None:
        limit = CLIP * math.sqrt(variance)
        step = min(max(error, -limit), limit) / variance
        weights, drift = self.weights, []
        for i, share in zip(self.covariance.met, gain, strict=True):
            weight = weights[i] = weights[i] + step * share
            drift.append(DRIFT * max(abs(weight), LEAST_SCALE) ** 2)
        self.covariance.explain(gain, variance)
        self.covariance.drift(drift)
