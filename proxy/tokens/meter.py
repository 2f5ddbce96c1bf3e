"""The meter: how many tokens a request's prompt has, by all that is known.

Best first: a count of this very prompt by the backend, one it reported for the beginning of this conversation
plus a prediction of the rest, the model's own vocabulary, the general vocabulary with learned weights, byte
classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.backends.profile import ModelKey
from proxy.counting.anchors import Anchor, Anchors, scope_digest
from proxy.counting.features import EMPTY, Vector, add
from proxy.counting.margin import ROOM
from proxy.counting.model import ModelCounter
from proxy.counting.verdict import Expectation, Observation
from proxy.errors import BadRequest
from proxy.neutral.weight import is_heavy
from proxy.tokens.cache import (
    Draft,
    History,
    HistoryCache,
    ShortHistory,
    TextCache,
    Vectorizer,
    is_long,
    short_history,
)
from proxy.tokens.estimate import Estimate, EstimateSource, Lesson, Ticket
from proxy.tokens.extras import Extras, ExtrasDraft
from proxy.tokens.library import Library
from proxy.tokens.models import Model, Models

INLINE = 16 * 1024
"""Characters of new text up to which counting happens on the loop: 5 ms."""
COARSE_MARGIN = 0.3
TRUSTED_SAMPLES = 3


class Meter:
    """Measures prompts and learns from what backends report.

    To be used from one event loop. Texts that are new and large are counted in worker threads. Bodies are
    parsed JSON; messages must not be changed in place after they were measured, because a history
    that is sent again is recognised by comparison.

    Args:
        cache_bytes: bound on what is remembered of texts and histories, in bytes, about.
        library: where vocabularies are loaded, by default its own.
    """

    def __init__(self, *, cache_bytes: int = 64 * 2**20, library: Library | None = None) -> None:
        texts = TextCache(cache_bytes // 2)
        self._histories = HistoryCache(cache_bytes // 2)
        self._anchors = Anchors()
        self._models = Models(texts, library or Library())

    async def warm(self, key: ModelKey | None = None) -> None:
        """Load the vocabulary of `key`, or the general one: 0.3 s, for half of which all else waits.

        `measure` does so itself. To be called first by whoever only counts texts, which are counted coarsely else.
        """
        await self._models.warm(key)

    async def measure(
        self, key: ModelKey, body: Mapping[str, Any], *, tenant: str = "", short: bool = False
    ) -> Estimate:
        """Estimate the prompt tokens of a chat completion body; `short`: the caller knows it to be, see `is_long`.

        Reports for other tenants are no anchors.

        Raises:
            BadRequest: `messages` is no list, or something is nested too deeply to be counted.
        """
        messages = body.get("messages") or []
        if not isinstance(messages, list):
            raise BadRequest("messages must be a list", param="messages")
        model = self._models.get(key)
        vectorizer = model.vectorizer or await self._models.vectorizer(model)
        if (none := model.extras.without(body)) is not None and (short or not is_long(messages)):
            return self._estimate(model, vectorizer, none, short_history(vectorizer, messages), tenant)
        draft = self._histories.draft(vectorizer, messages)
        extras_draft = model.extras.draft(vectorizer, body)
        if extras_draft.size > INLINE or is_heavy(draft.new, INLINE):
            extras, history = await asyncio.to_thread(_read, model, vectorizer, draft, extras_draft)
        else:
            extras, history = _read(model, vectorizer, draft, extras_draft)
        model.extras.keep(vectorizer, extras_draft, extras)
        self._histories.keep(draft)
        return self._estimate(model, vectorizer, extras, history, tenant)

    def costs(self, key: ModelKey, messages: Sequence[Any]) -> list[float]:
        """Predicted tokens of each message, for planning what to cut.

        Their sum, with the base and the tools, is what a fresh `measure` says. Synchronous: messages that
        were never measured are counted on the spot, 5 MB of text per second.
        """
        model = self._models.get(key)
        vectorizer = self._models.vectorizer_now(model)
        draft = self._histories.draft(vectorizer, list(messages))
        history = draft.finish(vectorizer)
        self._histories.keep(draft)
        predict = model.counter.calibration.predict
        return [predict(x) for x in (*history.system.vectors, *history.rest.vectors)]

    def count_text(self, key: ModelKey, text: str) -> int:
        """Tokens of a piece of completion text, at least 1 unless it is empty. Not cached.

        Every piece is rounded: hand over what came since the last count rather than each delta.
        """
        if not text:
            return 0
        model = self._models.get(key)
        vector = self._models.vectorizer_now(model).uncached(text)
        return max(1, round(model.counter.calibration.predict((*vector, *EMPTY[len(vector) :]))))

    def observe(
        self, estimate: Estimate, prompt_tokens: int, *, window: int | None = None, may_cut: bool = True
    ) -> Observation:
        """Learn from the prompt tokens that the backend reported for a measured request.

        Args:
            estimate: what `measure` said of the body that was sent.
            prompt_tokens: the whole prompt, cached part included.
            window: context window in tokens as the backend tells it, if it does; helps to tell a silent cut.
            may_cut: whether it is a backend that cuts prompts without a word.
        """
        model = self._models.get(estimate.ticket.key)
        verdict = model.judge(estimate, prompt_tokens, window, may_cut=may_cut)
        if verdict is Observation.ACCEPTED:
            self._accept(model, estimate, prompt_tokens, given=False)
        return verdict

    def confirm(self, estimate: Estimate) -> None:
        """The backend has reported for a prompt once more what it had counted for it before: there is nothing to learn."""
        model, ticket = self._models.get(estimate.ticket.key), estimate.ticket
        model.confirm(estimate)
        if ticket.system_digest:
            self._anchor(estimate, estimate.tokens, given=False)

    def anchor_exact(self, estimate: Estimate, tokens: int) -> None:
        """Take in a count that the backend made on request; it is believed without judging."""
        if tokens > 0:
            self._accept(self._models.get(estimate.ticket.key), estimate, tokens, given=True)

    def set_hint(self, key: ModelKey, hint: str | None) -> None:
        """Say what the backend calls the model's architecture or tokenizer. Cheap when nothing changed."""
        model = self._models.get(key)
        if hint != model.hint:
            model.hint = hint
            model.resolve()

    def set_override(self, key: ModelKey, tokenizer: str | None) -> None:
        """Say which tokenizer the user set for the model; it wins over everything."""
        model = self._models.get(key)
        if tokenizer != model.override:
            model.override = tokenizer
            model.resolve()

    def dump(self, key: ModelKey) -> bytes:
        """What was learned of a model, to survive a restart."""
        return self._models.get(key).dump()

    def load(self, key: ModelKey, data: bytes) -> bool:
        """Continue with what `dump` wrote; False where it does not fit the model's vocabulary (any more).

        To be called after the hint and the override are set: they choose the vocabulary.
        """
        return self._models.get(key).load(data)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """How the model is counted and how well, for people."""
        return self._models.describe(key)

    def _estimate(
        self,
        model: Model,
        vectorizer: Vectorizer,
        extras: Extras,
        history: History | ShortHistory,
        tenant: str,
    ) -> Estimate:
        scope = scope_digest(extras.scope, tenant) if tenant else extras.scope
        system, digests, lesson = history.system_total, history.digests, None
        anchor = self._anchors.longest(scope, history.system_digest, digests)
        source: EstimateSource
        if anchor is not None and anchor.covered == len(digests) and anchor.system == system:
            tokens, source = anchor.tokens, "backend"
            upper = tokens if anchor.given else tokens + ROOM
        else:
            x, coarse = _uncovered(extras, history, anchor), vectorizer is not model.vectorizer
            source = _source(model, anchor, coarse=coarse)
            tokens, upper, expected = _predicted(model.counter, anchor, x, coarse=coarse)
            learnable = expected.predicted > 0 and not coarse
            lesson = Lesson(vectorizer.id, x, expected, learnable)
        ticket = Ticket(model.key, scope, history.system_digest, digests, system, lesson)
        return Estimate(tokens, upper, source, min(tokens, _fixed(model, extras, history)), ticket)

    def _accept(self, model: Model, estimate: Estimate, tokens: int, *, given: bool) -> None:
        model.counter.score(estimate.tokens, estimate.upper, tokens)
        if (lesson := estimate.ticket.lesson) is not None:
            model.learn(lesson, tokens)
        self._anchor(estimate, tokens, given=given)

    def _anchor(self, estimate: Estimate, tokens: int, *, given: bool) -> None:
        ticket = estimate.ticket
        if ticket.digest:
            anchor = Anchor(len(ticket.digests), tokens, ticket.system, given)
            self._anchors.put(ticket.scope, ticket.system_digest, ticket.digest, anchor)


def _read(model: Model, vectorizer: Vectorizer, draft: Draft, extras: ExtrasDraft) -> tuple[Extras, History]:
    return extras.finish(model.extras.scope, vectorizer), draft.finish(vectorizer)


def _uncovered(extras: Extras, history: History | ShortHistory, anchor: Anchor | None) -> Vector:
    """The features that no anchor covers."""
    system = history.system_total
    if anchor is None:
        return add((extras.x, system, *history.behind(0)))
    x = add(history.behind(anchor.covered))
    if anchor.system == system:
        return x
    return tuple(a + b - c for a, b, c in zip(x, system, anchor.system, strict=True))


def _predicted(
    counter: ModelCounter, anchor: Anchor | None, x: Vector, *, coarse: bool
) -> tuple[int, int, Expectation]:
    """The best estimate, its upper bound and what is expected of a report, where an anchor covers all but `x`."""
    known = 0 if anchor is None else anchor.tokens
    prediction, unsure = counter.predict(x), counter.unsure(x)
    predicted, margin = prediction.tokens, prediction.margin
    if coarse:
        margin += COARSE_MARGIN * abs(predicted)
    trusted = not coarse and (counter.exact or counter.samples >= TRUSTED_SAMPLES)
    tokens = max(1, round(known + predicted))
    upper = max(tokens, round(known + predicted + margin))
    return tokens, upper, Expectation(known, predicted, prediction.deviation, unsure, trusted=trusted)


def _fixed(model: Model, extras: Extras, history: History | ShortHistory) -> int:
    """Tokens of the leading system messages, tools and all that is no message."""
    calibration = model.counter.calibration
    if extras is model.extras.none and not history.system_digest:
        return round(calibration.bare)
    return max(0, round(calibration.predict(add((extras.x, history.system_total)))))


def _source(model: Model, anchor: Anchor | None, *, coarse: bool) -> EstimateSource:
    if anchor is not None:
        return "anchored"
    if coarse:
        return "coarse"
    return "exact" if model.counter.exact else "calibrated"


__all__ = ["Estimate", "Meter", "Observation"]
