"""What is known of one model's counting: its weights, its errors, and what it was told."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from proxy.counting.calibration import Calibration, InitialWeights, start
from proxy.counting.features import FIRST, IMAGE_TOKENS, IMAGES, REASONING, SCHEMA, TOOLS, Vector
from proxy.counting.margin import WINDOW, Margin

FORMAT = 1
"""Of what `dump` gives: to be raised whenever the features change."""
BIAS_SAMPLES = 20
BIAS_LIMIT = 0.03
"""Mean relative error over `BIAS_SAMPLES` at which a vocabulary is found not to be the model's own."""
LEAST_SHARE = 0.5
"""Share of the prediction below which an increment teaches nothing: the template dropped something older."""
LEAST_FRESH = 0.2
UNSURE = (REASONING, IMAGES, IMAGE_TOKENS, TOOLS, SCHEMA)
"""Features that some backends leave out of the prompt."""
UNSURE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens predicted for some features: the estimate, its standard deviation, what to add to be safe."""

    tokens: float
    deviation: float
    margin: float


@dataclass(slots=True)
class ModelCounter:
    """Predicts the tokens of feature vectors for one model and learns from reports.

    `vocabulary` names the vocabulary whose counts the vectors hold: weights fit no other.
    """

    vocabulary: str
    exact: bool
    calibration: Calibration
    margin: Margin
    samples: int = 0
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """|estimate - reported| / reported of whole prompts."""
    held: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BIAS_SAMPLES))
    """(reported - predicted, predicted) of the last increments."""

    @classmethod
    def begin(cls, vocabulary: str, *, exact: bool, prior: tuple[float, ...] = ()) -> ModelCounter:
        """A model nothing was reported of."""
        begin: InitialWeights = start(exact=exact, prior=prior)
        margin = Margin(early=0.15, enough=5, floor=0.2) if exact else Margin(early=0.3, enough=20)
        return cls(vocabulary, exact, Calibration.begin(begin), margin)

    def predict(self, x: Vector) -> Prediction:
        """Predict the tokens of features `x`."""
        tokens = self.calibration.predict(x)
        deviation = self.calibration.deviation(x)
        return Prediction(tokens, deviation, self.margin.of(tokens, deviation))

    def unsure(self, x: Vector) -> float:
        """Tokens of `x` that the backend may leave out for all that was learned so far."""
        weights, covariance = self.calibration.weights, self.calibration.covariance
        return sum(
            abs(weights[i] * x[i])
            for i in UNSURE
            if x[i] and math.sqrt(max(0.0, covariance.variance(i))) > UNSURE_SHARE * abs(weights[i])
        )

    def learn(self, x: Vector, tokens: float) -> None:
        """Take in that features `x` took `tokens` prompt tokens."""
        predicted = self.calibration.predict(x)
        self.samples += 1
        least = LEAST_SHARE if not x[FIRST] else LEAST_FRESH
        if predicted <= 0 or tokens < least * predicted:
            return
        deviation = self.calibration.update(x, tokens)
        self.margin.learn((tokens - predicted) / self.margin.scale(predicted, deviation))
        self.recent.append((tokens - predicted, predicted))

    def score(self, estimate: int, upper: int, reported: int) -> None:
        """Keep how good a whole estimate was."""
        self.errors.append(abs(estimate - reported) / reported)
        self.held.append(reported <= upper)

    def confirm(self) -> None:
        """Keep that a whole estimate was right."""
        self.errors.append(0.0)
        self.held.append(True)

    def contradicted(self) -> bool:
        """Whether reports show that the vocabulary is not the model's own."""
        if not self.exact or len(self.recent) < BIAS_SAMPLES:
            return False
        total = sum(predicted for _, predicted in self.recent)
        return abs(sum(error for error, _ in self.recent)) > BIAS_LIMIT * total

    def figures(self) -> dict[str, Any]:
        """Samples, 95th percentile of the relative error, share of prompts within the upper bound."""
        ordered = sorted(self.errors)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None
        return {
            "samples": self.samples,
            "p95_error": None if p95 is None else round(p95, 5),
            "bound_held": round(sum(self.held) / len(self.held), 4) if self.held else None,
        }

    def dump(self) -> dict[str, Any]:
        """All that was learned, as JSON values."""
        return {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "exact": self.exact,
            "samples": self.samples,
            "weights": self.calibration.weights,
            "covariance": self.calibration.covariance.whole(),
            "margin": list(self.margin.errors),
            "errors": list(self.errors),
            "held": list(self.held),
        }

    def load(self, kept: Any) -> bool:
        """Take over what `dump` gave for the same vocabulary; False and no change where it does not fit."""
        try:
            if (kept["format"], kept["vocabulary"], kept["exact"]) != (FORMAT, self.vocabulary, self.exact):
                return False
            calibration = Calibration.restore(kept["weights"], kept["covariance"])
            margin, errors = list(map(float, kept["margin"])), list(map(float, kept["errors"]))
            held, samples = list(map(bool, kept["held"])), int(kept["samples"])
        except (ValueError, KeyError, TypeError):
            return False
        if not all(map(math.isfinite, (*margin, *errors))):
            return False
        self.calibration, self.samples = calibration, samples
        self.margin.restore(margin)
        self.errors.extend(errors)
        self.held.extend(held)
        return True
