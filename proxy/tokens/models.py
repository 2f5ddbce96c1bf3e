"""State of the models that are counted: which vocabulary counts for each, what was learned of it, and what reports are worth.

A reported token count is believable, corrupt, or the sign of a prompt that the backend cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

import orjson

from proxy.backends.profile import ModelKey
from proxy.tokens.counter import Counter
from proxy.tokens.families import GENERAL, GENERAL_RATIOS, Resolution, resolve
from proxy.tokens.ratios import SAME, Ratios, Vector

GATE = 0.35
"""Relative error of the increment up to which a low report is believed."""
SLACK = 32.0
"""Tokens by which any report may be off without being corrupt: templates are not linear."""
MOST = 0.8
"""Share of the estimate from which a report is the count of this prompt, however little it grew."""
HIGHEST = 3.0
"""Times its prediction that a prompt may take: an unknown script can."""
HIDDEN = 512
"""Tokens that a server may add to each prompt (its template, a system prompt of its own) and nobody predicts."""
CUT_RATIO, CUT_LEAST = 0.6, 512
"""Share of the lowest reading below which a report shows a cut, and tokens that must be missing."""
DIFFERENT = 0.05
"""Share of its estimate by which another prompt has to differ to bear a report out."""
CONSISTENT = 0.2
"""Relative difference of the ratios of two disputed reports up to which they bear each other out."""
LEAST_CONSISTENT = 0.25
"""Share of the estimate below which no low report is borne out."""
BIAS_SAMPLES, BIAS_LIMIT = 20, 0.03
"""Mean relative error over so many reports at which a vocabulary is found not to be the model's own."""
TRUSTED_SAMPLES = 3
"""Reports from which a low one is called a cut."""
FITTED_DOUBT = 0.5
"""Doubt in the ratios of a family that is known."""
LEAST_SHARE = 0.5
"""Share of the lowest reading below which a report teaches nothing: the template dropped something older."""


class Observation(Enum):
    """Verdict on a reported token count."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """Not believed: it taught nothing and became no anchor."""
    CUT = "cut"
    """The backend seems to have dropped a part of the prompt; it taught nothing."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Tokens expected of a report: `anchor` by an earlier report of the prefix (0: none), and `predicted` for what follows.

    `predicted` may be off by `margin`; `trusted` where enough is known of the model to call a low report a cut.
    """

    anchor: int
    predicted: float
    margin: float
    trusted: bool

    @property
    def lowest(self) -> float:
        """Tokens of the prompt by the lowest reading of the estimate."""
        return self.anchor + self.predicted - self.margin


EstimateSource: TypeAlias = Literal["backend", "anchored", "exact", "calibrated"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Prompt tokens of a request.

    `tokens` is the best estimate, `upper` a bound that holds in at least 98.5 % of cases: what could
    overflow is decided by it. `source` says what the figures stand on: `backend` (a count of this very
    prompt), `anchored` (a count of its beginning and a prediction of the rest), `exact` (the model's own
    vocabulary) or `calibrated` (another vocabulary times learned ratios). `fixed` is the part of `tokens` that the leading system messages, tools and all that is no
    message take, as predicted.

    The rest is for the meter: `scope`, `system_digest` and the last of `digests` (of every prefix of the messages after the
    system's) are where the count will be an anchor, `system` counts the system messages, `x` what was predicted (None:
    all of it was counted), `counted_by` names what counted it.
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
    counted_by: str = field(repr=False)

    @property
    def counted(self) -> bool:
        """True where the backend counted this very prompt on request, rather than reported it beside an answer."""
        return self.source == "backend" and self.upper == self.tokens


@dataclass(slots=True)
class Model:
    """State of one model on one backend."""

    key: ModelKey
    resolution: Resolution = field(init=False)
    hint: str | None = None
    override: str | None = None
    vocabulary: str = field(init=False)
    exact: bool = field(init=False)
    ratios: Ratios = field(init=False)
    counter: Counter | None = field(init=False)
    """None until the vocabulary is loaded."""
    samples: int = 0
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=128))
    """Relative errors of whole prompts."""
    held: deque[bool] = field(default_factory=lambda: deque(maxlen=128))
    """Whether each was within the upper bound."""
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BIAS_SAMPLES))
    """Error and prediction of the last increments, in tokens."""
    dispute: Dispute | None = None
    """The last report that was rejected."""
    rejections: int = 0
    cuts: int = 0

    def __post_init__(self) -> None:
        self.resolution = resolve(self.key[1], None, None)
        self.begin()

    @property
    def family(self) -> str | None:
        """Id of its family."""
        return None if self.resolution.family is None else self.resolution.family.id

    def describe(self) -> dict[str, Any]:
        """Describe how the model is counted, and how well, for people."""
        ordered = sorted(self.errors)
        return {
            "source": "exact" if self.exact else "calibrated",
            "family": self.family,
            "family_by": self.resolution.origin,
            "vocabulary": self.vocabulary,
            "samples": self.samples,
            "p95_error": round(ordered[int(0.95 * (len(ordered) - 1))], 5) if ordered else None,
            "bound_held": round(sum(self.held) / len(self.held), 4) if self.held else None,
            "rejected": self.rejections,
            "cuts": self.cuts,
        }

    def dump(self) -> bytes:
        """Write what was learned, as JSON."""
        ratios = self.ratios
        learned = {"weights": ratios.weights, "variances": ratios.variances, "noise": ratios.noise}
        return orjson.dumps({"family": self.family, "exact": self.exact, "samples": self.samples, **learned})

    def load(self, data: bytes) -> bool:
        """Continue with what `dump` wrote; False where it does not fit what the model is resolved to now."""
        ratios = Ratios()
        try:
            stored = orjson.loads(data)
            family, exact, samples = stored["family"], bool(stored["exact"]), int(stored["samples"])
            ratios.restore(stored["weights"], stored["variances"], stored["noise"])
        except (ValueError, KeyError, TypeError):
            return False
        if family != self.family or (exact and not self.exact):
            return False
        self.begin(exact=exact)
        self.ratios.restore(ratios.weights, ratios.variances, ratios.noise)
        self.samples = samples
        return True

    def resolve(self, *, hint: str | None, override: str | None) -> None:
        """Choose the family again after a word of the backend's or the user's; cheap where nothing changed."""
        if (hint, override) == (self.hint, self.override):
            return
        before = self.family
        self.hint, self.override = hint, override
        self.resolution = resolve(self.key[1], hint, override)
        if self.family != before:
            self.begin()

    def judge(self, estimate: Estimate, reported: int, window: int | None, *, may_cut: bool) -> Observation:
        """Judge a report in the light of those before it."""
        verdict = verdict_on(estimate.expected, reported, window, may_cut=may_cut)
        possible = reported > 0 and (window is None or reported <= window)
        if verdict is Observation.REJECTED and possible:
            if self.dispute is not None and self.dispute.borne_out(reported, estimate.tokens):
                self.begin(exact=False) if self._may_give_up() else self.ratios.widen()
                verdict = Observation.ACCEPTED
            else:
                self.dispute = Dispute(estimate.digests, reported, estimate.tokens)
        if verdict is Observation.ACCEPTED and self.dispute is not None:
            settled = bool(self.dispute.digests) and self.dispute.digests[-1] in estimate.digests
            self.dispute = None if settled else self.dispute
        self.cuts += verdict is Observation.CUT
        self.rejections += verdict is Observation.REJECTED
        return verdict

    def learn(self, estimate: Estimate, tokens: int) -> None:
        """Learn from an accepted report; a vocabulary that reports contradict is given up."""
        self.errors.append(abs(estimate.tokens - tokens) / tokens)
        self.held.append(tokens <= estimate.upper)
        expected, increment = estimate.expected, tokens - estimate.expected.anchor
        if estimate.x is None or self.counter is None or estimate.counted_by != self.counter.id:
            return
        self.samples += 1
        if increment < LEAST_SHARE * (expected.predicted - expected.margin) or expected.predicted <= 0:
            return
        self.ratios.learn(estimate.x, increment)
        self.recent.append((increment - expected.predicted, expected.predicted))
        error, total = map(sum, zip(*self.recent, strict=True))
        if len(self.recent) == BIAS_SAMPLES and abs(error) > BIAS_LIMIT * total and self._may_give_up():
            self.begin(exact=False)

    def _may_give_up(self) -> bool:
        """Say whether the vocabulary is only believed to be the model's own."""
        return self.exact and self.resolution.origin != "user"

    def begin(self, *, exact: bool = True, general: bool = False) -> None:
        """Begin without anything learned: by the family's own vocabulary, as one like any other, or by the general one."""
        family = None if general else self.resolution.family
        ratios = GENERAL_RATIOS if family is None else family.ratios
        self.vocabulary = GENERAL if family is None else family.vocabulary
        self.exact = exact and not ratios
        doubt = 0.0 if self.exact else FITTED_DOUBT if exact and family is not None else 1.0
        self.ratios = Ratios(ratios or SAME, doubt=doubt)
        self.counter = None
        self.recent.clear()
        self.samples = 0


def verdict_on(expected: Expectation, reported: int, window: int | None, *, may_cut: bool = True) -> Observation:
    """Judge a report of `reported` prompt tokens.

    An estimate is no evidence against a backend: one that refuses what is too long for it does not cut, and a prompt
    that fits by its lowest reading was not cut.

    Args:
        expected: what was expected of it.
        reported: what the backend says.
        window: in tokens, as the backend itself tells it; None where it tells none.
        may_cut: whether it is a backend that cuts prompts in silence.
    """
    if reported <= 0 or (window is not None and reported > window):
        return Observation.REJECTED
    believed = _believable(expected, reported)
    if may_cut and (window is None or expected.lowest > window):
        # Ollama leaves half of the window and 2 tokens, whatever the prompt was.
        half = window is not None and abs(reported - (window // 2 + 2)) <= 4
        missing, room = expected.lowest - reported, max(2.0 * SLACK, GATE * expected.predicted, expected.margin)
        # Only the part that was not cached may have been reported.
        uncached = expected.anchor > 0 and abs(reported - expected.predicted) <= room
        is_low = missing >= CUT_LEAST and reported < CUT_RATIO * expected.lowest and not uncached
        if half or (not believed and is_low and (expected.trusted or expected.anchor)):
            return Observation.CUT
    return Observation.ACCEPTED if believed else Observation.REJECTED


def _believable(expected: Expectation, reported: int) -> bool:
    """Say whether a report can be the count of the whole prompt.

    A high one is believed within what an unknown script or a hidden system prompt can cost, a low one within the gate
    or the margin of the predicted increment, or when most of the prompt is in it; none that falls where the prompt grew,
    or that is nearer to what is new in the prompt than to the whole: then the rest was cached and not reported.
    """
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


@dataclass(frozen=True, slots=True)
class Dispute:
    """A report that was not believed, and the estimate it was held against; tokens."""

    digests: Sequence[bytes]
    reported: int
    estimated: int

    def borne_out(self, reported: int, estimated: int) -> bool:
        """Say whether the report of a prompt of another length is off by the same ratio, or is too high by as much.

        Corrupt reports stay the same, or tell only what was not cached; those of a model that takes a script otherwise, or
        of a server with a system prompt of its own, grow with the prompt.
        """
        grown, expected = reported - self.reported, estimated - self.estimated
        if abs(expected) < max(SLACK, DIFFERENT * self.estimated):
            return False
        ratio, before = grown / expected, self.reported / max(1, self.estimated)
        if before > 1.0 and reported > estimated and 1.0 / HIGHEST <= ratio <= HIGHEST:
            return True
        return before >= LEAST_CONSISTENT and abs(ratio - before) <= CONSISTENT * before
