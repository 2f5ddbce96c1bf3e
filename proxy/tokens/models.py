"""State of the models that are counted: which vocabulary counts for each, and what was learned of it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

from proxy.backends.profile import ModelKey
from proxy.tokens.families import GENERAL, GENERAL_RATIOS, VOCABULARIES, Resolution, resolve
from proxy.tokens.images import image_rule
from proxy.tokens.messages import Counter
from proxy.tokens.ratios import SAME, Ratios, Vector
from proxy.tokens.verdict import Dispute, Expectation, Observation, verdict_on
from proxy.tokens.vocabulary import Coarse, Library

MOST_MODELS = 1024
"""Models remembered; the one seen first is forgotten beyond that."""
BIAS_SAMPLES, BIAS_LIMIT = 20, 0.03
"""Mean relative error over so many reports at which a vocabulary is found not to be the model's own."""
TRUSTED_SAMPLES = 3
"""Reports from which a low one is called a cut."""
FITTED_DOUBT = 0.5
"""Doubt in the ratios of a family that is known."""
LEAST_SHARE = 0.5
"""Share of the lowest reading below which a report teaches nothing: the template dropped something older."""


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
    def digest(self) -> bytes:
        """Digest of all messages; b"" where there is none but the system's."""
        return self.digests[-1] if self.digests else b""

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
                self.dispute = Dispute(estimate.digest, reported, estimate.tokens)
        if verdict is Observation.ACCEPTED:
            self.believed(estimate)
        self.cuts += verdict is Observation.CUT
        self.rejections += verdict is Observation.REJECTED
        return verdict

    def believed(self, estimate: Estimate) -> None:
        """End the dispute over a conversation of which a report was believed."""
        if self.dispute is not None and self.dispute.digest in estimate.digests:
            self.dispute = None

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


class Models:
    """The models by backend and id, and the vocabularies they share."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._models: OrderedDict[ModelKey, Model] = OrderedDict()

    def get(self, key: ModelKey) -> Model:
        """Find a model, or begin with it."""
        if (model := self._models.get(key)) is None:
            model = self._models[key] = Model(key)
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        return model

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Describe how a model is counted, and how well, for people."""
        model = self.get(key)
        problem = self._library.failures.get(model.family or GENERAL)
        return {**model.describe(), **({"problem": problem} if problem else {})}

    async def counter(self, model: Model) -> Counter:
        """Load the vocabulary of a model, or the general one where that fails."""
        family = model.resolution.family
        load = (family and family.load) or VOCABULARIES[model.vocabulary]
        if await self._library.load(model.vocabulary, load) is None and model.vocabulary != GENERAL:
            model.begin(general=True)
            return await self.counter(model)
        return self.counter_now(model)

    def counter_now(self, model: Model) -> Counter:
        """Count with what is loaded: the model's vocabulary, else a coarse one that is not remembered."""
        if model.counter is None:
            rule, vocabulary = image_rule(model.key[1]), self._library.get(model.vocabulary)
            if vocabulary is None:
                return Counter(Coarse(), exact=False, rule=rule)
            model.counter = Counter(vocabulary, exact=model.exact, rule=rule)
        return model.counter
