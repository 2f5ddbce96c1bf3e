"""State of each counted model: its vocabulary, what was learned about it, and a verdict on reported token counts.

A reported count is believable, corrupt, or a sign that the backend cut the prompt.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

import orjson

from proxy.backends.profile import ModelKey
from proxy.tokens.counter import Counter
from proxy.tokens.families import UNKNOWN, Family, resolve
from proxy.tokens.ratios import SAME, Ratios, Vector

# In simulated conversations with 5 % corrupt reports (the cached part missing, or half of the prompt), estimates were
# as good as without them.
GATE = 0.35
"""Largest relative error of the increment at which a low report is believed."""
SLACK = 32.0
"""Tokens by which any report may be off without being corrupt: templates are not linear."""
MOST = 0.8
"""Share of the estimate from which a report counts as one of the whole prompt, however little the prompt grew."""
HIGHEST = 3.0
"""Largest ratio of a report to its prediction: text in an unknown script may take that much more."""
HIDDEN = 4096
"""Tokens that a server may add to each prompt unpredictably (its template, a system prompt of its own)."""
CUT_RATIO, CUT_LEAST = 0.6, 512
"""Share of the lower bound below which a report shows a cut, and fewest tokens that must be missing."""
TRUSTED_SAMPLES = 3
"""Reports needed before a low one counts as a cut."""
OWN_DOUBT, FITTED_DOUBT = 0.1, 0.5
"""Doubt in the ratios of a family with its own vocabulary (its name may mislead), and of one with fitted ratios."""
LEAST_SHARE = 0.5
"""Share of the lower bound below which a report teaches nothing: the template has dropped something older."""


class Observation(Enum):
    """Verdict on a reported token count."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """Not believed: nothing was learned from it, and it did not become an anchor."""
    CUT = "cut"
    """The backend seems to have dropped a part of the prompt; nothing was learned from it."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Tokens expected in a report: `anchor` for the prefix, from an earlier report (0 without one), and `predicted` for the rest.

    `predicted` may be off by `margin`. `trusted` says whether the model is known well enough to call a low report a cut.
    """

    anchor: int
    predicted: float
    margin: float
    trusted: bool

    @property
    def lowest(self) -> float:
        """Lower bound of the prompt's tokens."""
        return self.anchor + self.predicted - self.margin


EstimateSource: TypeAlias = Literal["backend", "anchored", "exact", "calibrated"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Prompt tokens of a request.

    `tokens` is the best estimate, and `upper` a bound that holds in at least 98.5 % of cases; decisions about overflow use
    it. `source` is the basis of the figures: `backend` (a count of this very prompt), `anchored` (a count of its beginning
    and a prediction of the rest), `exact` (the model's own vocabulary) or `calibrated` (another vocabulary times learned
    ratios). `fixed` is the predicted part of `tokens` for leading system messages, tools and everything besides messages.

    The rest is for the meter. `scope`, `system_digest` and the last of `digests` (one for each prefix of the messages after
    the system's) are the key under which a report becomes an anchor. `system` counts the system messages, and `x` the
    predicted part, or is None if all of the prompt was counted.
    """

    tokens: int
    upper: int
    source: EstimateSource
    fixed: int
    expected: Expectation
    key: ModelKey = field(repr=False)
    scope: bytes = field(repr=False)
    system_digest: bytes = field(repr=False)
    digests: Sequence[bytes] = field(repr=False)
    system: Vector = field(repr=False)
    x: Vector | None = field(repr=False)

    @property
    def counted(self) -> bool:
        """Return whether the backend counted this very prompt on request, rather than reporting it with an answer."""
        return self.source == "backend" and self.upper == self.tokens


@dataclass(slots=True)
class Model:
    """State of one model on one backend."""

    key: ModelKey
    family: Family = field(init=False)
    family_by: str = field(init=False)
    """Source of the family's name, see `proxy.tokens.families.resolve`."""
    hint: str | None = None
    override: str | None = None
    counted_as: Family = field(init=False)
    """Family used for counting: the same, or `UNKNOWN` if its vocabulary can't be loaded."""
    exact: bool = field(init=False)
    """Whether the vocabulary used is believed to be the model's own."""
    ratios: Ratios = field(init=False)
    counter: Counter | None = field(init=False)
    """Counter of messages, or None until the vocabulary is loaded."""
    samples: int = field(init=False)
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=128))
    """Relative errors of whole prompts."""
    rejections: int = 0
    cuts: int = 0
    restored: bool = False
    """Whether its state was looked up in the store."""

    def __post_init__(self) -> None:
        self.family, self.family_by = resolve(self.key[1], None, None)
        self.begin(self.family)

    def describe(self) -> dict[str, Any]:
        """Describe how the model is counted, and how well, for people."""
        ordered = sorted(self.errors)
        return {
            "source": "exact" if self.exact else "calibrated",
            "family": self.family.id,
            "family_by": self.family_by,
            "vocabulary": self.counted_as.vocabulary,
            "samples": self.samples,
            "p95_error": round(ordered[int(0.95 * (len(ordered) - 1))], 5) if ordered else None,
            "rejected": self.rejections,
            "cuts": self.cuts,
        }

    def dump(self) -> bytes:
        """Write what was learned, as JSON, to survive a restart."""
        ratios = self.ratios
        learned = {"weights": ratios.weights, "variances": ratios.variances, "noise": ratios.noise}
        return orjson.dumps({"family": self.family.id, "exact": self.exact, "samples": self.samples, **learned})

    def load(self, data: bytes) -> bool:
        """Restore what `dump` wrote; returns False if that is invalid, or of another family."""
        try:
            stored = orjson.loads(data)
            if (stored["family"], stored["exact"]) != (self.family.id, self.exact):
                return False
            samples = int(stored["samples"])
            self.ratios.restore(stored["weights"], stored["variances"], stored["noise"])
        except (ValueError, KeyError, TypeError):
            return False
        self.samples = samples
        return True

    def resolve(self, *, hint: str | None = None, override: str | None = None) -> None:
        """Choose the family again after a hint from the backend or an override by the user, which wins over everything."""
        if (hint, override) == (self.hint, self.override):
            return
        before, self.hint, self.override = self.family, hint, override
        self.family, self.family_by = resolve(self.key[1], hint, override)
        if self.family.id != before.id:
            self.begin(self.family)

    def expected(self, anchor: int, x: Vector) -> Expectation:
        """Return the expectation for a report: `anchor` tokens from an earlier one, and a prediction from `x` for the rest."""
        trusted = self.exact or self.samples >= TRUSTED_SAMPLES
        return Expectation(anchor, self.ratios.predict(x), self.ratios.margin(x), trusted)

    def learn(self, estimate: Estimate, tokens: int) -> None:
        """Learn from a trusted count."""
        self.errors.append(abs(estimate.tokens - tokens) / tokens)
        if estimate.x is None:
            return
        self.samples += 1
        expected, increment = estimate.expected, tokens - estimate.expected.anchor
        if expected.predicted > 0 and increment >= LEAST_SHARE * (expected.predicted - expected.margin):
            self.ratios.learn(estimate.x, increment)

    def begin(self, family: Family) -> None:
        """Start counting like this family, with nothing learned yet."""
        self.counted_as, self.exact = family, not family.ratios
        doubt = 1.0 if family is UNKNOWN else OWN_DOUBT if self.exact else FITTED_DOUBT
        self.ratios = Ratios(family.ratios or SAME, doubt=doubt)
        self.counter = None
        self.samples = 0


def verdict_on(expected: Expectation, reported: int, window: int | None, *, may_cut: bool = True) -> Observation:
    """Judge a report of `reported` prompt tokens.

    An estimate alone is not evidence of a cut: a backend that refuses prompts that are too long does not cut them, and a
    prompt whose lower bound fits was not cut.

    Args:
        expected: expectation for this report.
        reported: tokens that the backend reports.
        window: context window in tokens as reported by the backend itself, or None.
        may_cut: whether the backend is one that silently cuts prompts.
    """
    if reported <= 0 or (window is not None and reported > window):
        return Observation.REJECTED
    believed = _believable(expected, reported)
    if may_cut and (window is None or expected.lowest > window):
        half = window is not None and is_half(reported, window)
        missing, room = expected.lowest - reported, max(2.0 * SLACK, GATE * expected.predicted, expected.margin)
        # The backend may have reported only the part that was not in its cache.
        uncached = expected.anchor > 0 and abs(reported - expected.predicted) <= room
        is_low = missing >= CUT_LEAST and reported < CUT_RATIO * expected.lowest and not uncached
        if half or (not believed and is_low and (expected.trusted or expected.anchor)):
            return Observation.CUT
    return Observation.ACCEPTED if believed else Observation.REJECTED


def is_half(tokens: int, window: int) -> bool:
    """Return whether `tokens` is the size to which Ollama cuts any prompt that is too long: half of the window, plus 2."""
    return abs(tokens - (window // 2 + 2)) <= 4


def _believable(expected: Expectation, reported: int) -> bool:
    """Return whether a report can be the count of the whole prompt.

    A high report is believed up to the cost of an unknown script or a hidden system prompt. A low one is believed within the
    gate or the margin of the predicted increment, or if it has most of the prompt. A report is not believed if it falls
    although the prompt grew, or if it is closer to the new part than to the whole: then the rest was cached and not reported.
    """
    # Three reports that were believed once: 22,500 tokens for `hi` in a window of 16,384, after which every key's `hi`
    # was refused; the uncached part alone, which taught half of the true ratio; a total that fell although the prompt
    # had grown.
    grown, predicted, margin = reported - expected.anchor, expected.predicted, expected.margin
    if grown >= predicted - SLACK:
        return grown <= HIGHEST * max(0.0, predicted + margin) + HIDDEN
    if grown < 0 < predicted:
        return False
    if expected.anchor and reported >= MOST * (expected.anchor + predicted):
        return True
    if expected.anchor and abs(reported - predicted) < predicted - grown:
        return False
    return grown > 0 and predicted <= max((1.0 + GATE) * grown, grown + margin)
