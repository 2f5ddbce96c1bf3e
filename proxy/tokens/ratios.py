"""Learned ratios for each model and script: tokens of the model per token of the vocabulary that counts in its place.

A `Vector` holds `SIZE` numbers that add up over messages: tokens by script, then other parts of a prompt. The prediction
for a model is their sum, each times a learned weight: the ratios of the scripts, and the tokens of a template's parts.
"""

import math
from collections.abc import Iterable, Sequence
from operator import mul
from typing import TypeAlias

Vector: TypeAlias = tuple[float, ...]

SCRIPTS = 11
"""In this order: ASCII, digits, Latin with marks, Greek and Cyrillic, Hebrew and Arabic, Indic and Thai, typographic marks,
Han and kana, Hangul, emoji, indentation."""
MESSAGES, CALLS, REASONING, IMAGES, FIRST, TOOLS = range(SCRIPTS, SCRIPTS + 6)
"""Positions after the scripts: number of messages; number of tool calls; tokens of reasoning that the client sends again (many
templates drop it); tokens of images by rule; 1 for a whole prompt, or 0 after an anchor; tokens of tools and schemas."""
SIZE = SCRIPTS + 6
EMPTY: Vector = (0,) * SIZE

_LEADS = ((0x30, 0x39), (0xC2, 0xCB), (0xCC, 0xD4), (0xD5, 0xDF), (0xE0, 0xE1), (0xE2, 0xE2), (0xE3, 0xE9), (0xEA, 0xED), (0xEE, 0xF4))  # fmt: skip
"""Range of first UTF-8 bytes of the characters of each script but ASCII."""
# Coarse on purpose: these figures only distribute a known count over the scripts of a text.
_TOKENS = (0.4, 3.0, 0.5, 0.7, 1.0, 1.0, 1.0, 1.0, 2.0)
"""Approximate tokens per character of each script. An accented Latin letter counts for its whole word, hence 3."""
# GPT-2's vocabulary takes each space for a token, so code needs twice as many tokens as prose. A single ratio swung
# between the two: growing chats were off by 2.5 %, and the upper bound covered 68 % of the prompts. With a ratio for
# indentation it is 0.6 % and 96 %.
_INDENT = 1.0
"""Approximate tokens for each pair of spaces: indented code has a ratio of its own."""
_CLASSES = bytes(next((n for n, (a, b) in enumerate(_LEADS, 1) if a <= byte <= b), 0) for byte in range(256))

SAME = (1.0,) * SCRIPTS
"""Ratios for a vocabulary that is close enough to need no correction."""
_TEMPLATE = ((5.0, 3.0), (25.0, 10.0), (0.5, 0.5), (1.0, 0.5), (8.0, 20.0), (1.15, 0.6))
"""Typical weights of `MESSAGES` to `TOOLS`, and their standard deviations."""
_GUESSED = (0.25, 0.8, *(0.6,) * (SCRIPTS - 2))
"""Standard deviations of the ratios of an unknown model."""
_LOWEST = 0.2
"""Lowest ratio of a script."""
_NOISE = 0.02
"""Smallest relative error assumed beyond what the ratios explain."""
# Without it, one small report settled too much: a title's short prompt set the ratio of a whole model, and the next
# long chat counted a fifth too low.
_UNKNOWN_NOISE = 0.1
"""The same for an unknown model, whose texts differ in their ratios, so that one says little about the next."""
_MEMORY = 0.25
"""Weight of the newest report in the estimate of that error."""
_ROUNDING = 4.0
"""Variance of a count in tokens²: merges across the borders of texts."""
_CLIP = 4.0
"""Standard deviations to which an error is clipped before it moves the weights."""
_DRIFT = 1e-5
"""Variance that a weight gains with each report, relative to its square."""
ROOM = 8
"""Fewest tokens of a margin."""


def by_script(text: str, tokens: int) -> tuple[float, ...]:
    """Distribute the tokens of a text over scripts, by its characters: `SCRIPTS` numbers whose sum is `tokens`."""
    classes = text.encode("utf-8", "replace").translate(_CLASSES)
    parts = [each * classes.count(n) for n, each in enumerate(_TOKENS, 1)]
    parts.append(_INDENT * text.count("  "))
    total = sum(parts)
    if total > tokens:
        parts, total = [tokens * part / total for part in parts], tokens
    return (tokens - total, *parts)


def add(vectors: Sequence[Vector], size: int = SIZE) -> Vector:
    """Sum vectors of `size` numbers; without any, return zeros."""
    if len(vectors) < 2:
        return vectors[0] if vectors else (0,) * size
    return tuple(map(sum, zip(*vectors, strict=True)))


def predicted(weights: Sequence[float], x: Vector) -> float:
    """Return the tokens for the counts in `x` by these weights."""
    tokens: float = sum(map(mul, weights, x))
    return tokens


class Ratios:
    """Weights and their variances, updated with every report like a Kalman filter that assumes them to be independent.

    Args:
        ratios: initial weights of the scripts.
        doubt: factor on their usual standard deviations.
    """

    # Recursive least squares over 31 features, with a covariance matrix, were no better: a growing chat was off by 0.35
    # % on average instead of 0.40, a cold one by 4.5 instead of 4.6. Ten families, five of them unknown, were measured
    # with the models' own tokenizers.

    def __init__(self, ratios: Sequence[float] = SAME, *, doubt: float = 1.0) -> None:
        deviations = (*(doubt * each for each in _GUESSED), *(deviation for _, deviation in _TEMPLATE))
        self.weights = [*ratios, *(weight for weight, _ in _TEMPLATE)]
        self.variances = [deviation**2 for deviation in deviations]
        self.noise = max(_NOISE, _UNKNOWN_NOISE * doubt)
        """Relative error in the reports beyond what the ratios explain: prose and code, for example, may differ in theirs."""

    def predict(self, x: Vector) -> float:
        """Predict the model's tokens for the counts in `x`."""
        return predicted(self.weights, x)

    def margin(self, x: Vector) -> float:
        """Return the tokens by which `predict(x)` may be off in either direction: two standard deviations and `ROOM`."""
        _, variance = self._spread(x, self.predict(x))
        return 2.0 * math.sqrt(variance) + ROOM

    def learn(self, x: Vector, tokens: float) -> None:
        """Learn that the counts in `x` took `tokens` tokens; does nothing if that is less than one."""
        if tokens < 1:
            return
        spread, variance = self._spread(x, tokens)
        limit = _CLIP * math.sqrt(variance)
        error = min(max(tokens - self.predict(x), -limit), limit)
        unexplained = max(0.0, error * error - sum(map(mul, spread, x)) - _ROUNDING) / tokens**2
        self.noise = max(_NOISE, math.sqrt((1.0 - _MEMORY) * self.noise**2 + _MEMORY * unexplained))
        for i, part in enumerate(spread):
            if part:
                least = _LOWEST if i < SCRIPTS else 0.0
                self.weights[i] = max(least, self.weights[i] + part * error / variance)
                drift = _DRIFT * self.weights[i] ** 2
                self.variances[i] = self.variances[i] * (1.0 - part * x[i] / variance) + drift

    def restore(self, weights: Iterable[float], variances: Iterable[float], noise: float) -> None:
        """Continue with values that were stored.

        Raises:
            ValueError, TypeError: the weights and variances are not `SIZE` finite numbers each.
        """
        lines = [float(value) for value in weights], [float(value) for value in variances]
        if any(len(line) != SIZE or not all(map(math.isfinite, line)) for line in lines):
            raise ValueError("weights of another shape")
        self.weights, self.variances = lines
        self.noise = max(_NOISE, min(1.0, float(noise)))

    def _spread(self, x: Vector, tokens: float) -> tuple[list[float], float]:
        """Return each weight's share in the variance of the prediction for `x`, and that variance, in tokens²."""
        spread = [*map(mul, self.variances, x)]
        return spread, sum(map(mul, spread, x)) + (self.noise * tokens) ** 2 + _ROUNDING
