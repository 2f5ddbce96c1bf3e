"""The models that are measured: which vocabulary each has, and what was learned of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from proxy.backends.profile import ModelKey
from proxy.counting.anchors import scope_digest
from proxy.counting.images import image_rule
from proxy.counting.model import ModelCounter
from proxy.counting.verdict import Dispute, Observation, verdict_on
from proxy.tokens.cache import TextCache, Vectorizer
from proxy.tokens.estimate import Estimate, Lesson
from proxy.tokens.extras import ExtrasCache
from proxy.tokens.families import GENERAL, O200K_ID, Resolution, load_general, load_of, resolve
from proxy.tokens.library import Library
from proxy.tokens.vocabulary import Coarse

MOST_MODELS = 1024
"""Models remembered; the one seen first is forgotten beyond that."""


@dataclass(slots=True)
class Model:
    """State of one model on one backend."""

    key: ModelKey
    extras: ExtrasCache
    resolution: Resolution
    counter: ModelCounter
    hint: str | None = None
    override: str | None = None
    vectorizer: Vectorizer | None = None
    """None until the vocabulary is loaded."""
    rejections: int = 0
    dispute: Dispute | None = None
    """The last report that was rejected."""
    cuts: int = 0
    contradicted: bool = False
    """The model's vocabulary was given up because reports contradicted it."""

    def describe(self) -> dict[str, Any]:
        """How the model is counted and how well, for people."""
        return {
            "source": "exact" if self.counter.exact else "calibrated",
            "family": _id(self.resolution),
            "family_by": self.resolution.origin,
            "vocabulary": self.counter.vocabulary,
            "loaded": self.vectorizer is not None,
            "contradicted": self.contradicted,
            **self.counter.figures(),
            "rejected": self.rejections,
            "cuts": self.cuts,
        }

    def dump(self) -> bytes:
        """What was learned, as JSON."""
        return orjson.dumps(
            {
                "family": _id(self.resolution),
                "contradicted": self.contradicted,
                "counter": self.counter.dump(),
            }
        )

    def load(self, data: bytes) -> bool:
        """Continue with what `dump` wrote; False where it does not fit what the model is resolved to now."""
        try:
            kept = orjson.loads(data)
            family, contradicted, learned = kept["family"], bool(kept["contradicted"]), kept["counter"]
        except (ValueError, KeyError, TypeError):
            return False
        if family != _id(self.resolution):
            return False
        counter = begin(self.resolution, contradicted=contradicted)
        if not counter.load(learned):
            return False
        self.counter, self.contradicted, self.vectorizer = counter, contradicted, None
        return True

    def resolve(self) -> None:
        """Choose the family again after a word of the backend's or the user's."""
        resolution = resolve(self.key[1], self.hint, self.override)
        if _id(resolution) != _id(self.resolution):
            self.counter = begin(resolution)
            self.contradicted = False
            self.vectorizer = None
        self.resolution = resolution

    def judge(self, estimate: Estimate, reported: int, window: int | None, *, may_cut: bool) -> Observation:
        """Tell what a report is, in the light of those before it."""
        verdict = verdict_on(estimate.expected, reported, window, may_cut=may_cut)
        possible = reported > 0 and (window is None or reported <= window)
        if verdict is Observation.REJECTED and possible and self._borne_out(estimate, reported):
            verdict = Observation.ACCEPTED
        if verdict is Observation.CUT:
            self.cuts += 1
        elif verdict is Observation.REJECTED:
            self.rejections += 1
            if possible:
                self.dispute = Dispute(estimate.ticket.digest, reported, estimate.tokens)
        else:
            self._believed(estimate)
        return verdict

    def confirm(self, estimate: Estimate) -> None:
        """Note that the same count of the same prompt was reported again."""
        self._believed(estimate)
        self.counter.confirm()

    def _believed(self, estimate: Estimate) -> None:
        """A report that fits ends the dispute over its conversation."""
        if self.dispute is not None and self.dispute.digest in estimate.ticket.digests:
            self.dispute = None

    def _borne_out(self, estimate: Estimate, reported: int) -> bool:
        """Whether the last rejected report, of another prompt, is off in the same way: then the weights are wrong."""
        dispute = self.dispute
        if dispute is None or not dispute.borne_out(reported, estimate.tokens):
            return False
        if not self.counter.exact:
            self.counter.calibration.widen()
        elif self.resolution.origin != "user":
            self._give_up()
        return True

    def learn(self, lesson: Lesson, tokens: int) -> None:
        """Learn from an accepted report of a prompt; a vocabulary that reports contradict is given up."""
        vectorizer = self.vectorizer
        if not lesson.learnable or vectorizer is None or lesson.vectorizer != vectorizer.id:
            return
        self.counter.learn(lesson.x, tokens - lesson.expected.anchor)
        if self.resolution.origin != "user" and self.counter.contradicted():
            self._give_up()

    def _give_up(self) -> None:
        """Go on with the general vocabulary: this one is not the model's."""
        self.contradicted = True
        self.counter = begin(self.resolution, contradicted=True)
        self.vectorizer = None


class Models:
    """The models by backend and id, and the vocabularies they share."""

    def __init__(self, texts: TextCache, library: Library) -> None:
        self._texts = texts
        self._library = library
        self._coarse = Coarse()
        self._models: OrderedDict[ModelKey, Model] = OrderedDict()

    def get(self, key: ModelKey) -> Model:
        """The model, made on first sight."""
        model = self._models.get(key)
        if model is None:
            resolution = resolve(key[1], None, None)
            model = Model(key, ExtrasCache(scope_digest(*key)), resolution, begin(resolution))
            self._models[key] = model
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        return model

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """How a model is counted and how well, for people."""
        described = self.get(key).describe()
        problem = self._library.failures.get(described["family"] or GENERAL)
        return {**described, "problem": problem} if problem else described

    async def warm(self, key: ModelKey | None) -> None:
        """Load the vocabulary of a model, or the general one."""
        if key is None:
            await self._library.load(GENERAL, load_general)
        else:
            await self.vectorizer(self.get(key))

    async def vectorizer(self, model: Model) -> Vectorizer:
        """The vectorizer of a model, for which its vocabulary is loaded: its own, or the one that its prior corrects."""
        family, vocabulary = model.resolution.family, model.counter.vocabulary
        own = family is not None and model.counter.exact
        load = family.load if family is not None and own else load_of(vocabulary)
        if load is not None and await self._library.load(vocabulary, load) is None and own:
            model.counter = begin(model.resolution, contradicted=True)
            return await self.vectorizer(model)
        return self.vectorizer_now(model)

    def vectorizer_now(self, model: Model) -> Vectorizer:
        """The vectorizer with what is loaded: the model's, else a coarse one that is not kept."""
        if model.vectorizer is not None:
            return model.vectorizer
        rule = image_rule(model.key[1])
        vocabulary = self._library.get(model.counter.vocabulary)
        if vocabulary is None:
            return Vectorizer(self._coarse, exact=False, rule=rule, cache=self._texts)
        model.vectorizer = Vectorizer(vocabulary, exact=model.counter.exact, rule=rule, cache=self._texts)
        return model.vectorizer


def _id(resolution: Resolution) -> str | None:
    return resolution.family.id if resolution.family else None


def begin(resolution: Resolution, *, contradicted: bool = False) -> ModelCounter:
    """A counter that learned nothing yet, for what the resolution found."""
    family = resolution.family
    if family is not None and family.prior:
        near = family.id if family.load is not None else O200K_ID
        return ModelCounter.begin(near, exact=False, prior=family.prior)
    if family is not None and family.load is not None and not contradicted:
        return ModelCounter.begin(family.id, exact=True)
    return ModelCounter.begin(GENERAL, exact=False)
