"""The meter: how many tokens a request's prompt has, by all that is known.

Best first: a count of this very prompt by the backend, one it reported for the beginning of this conversation
plus a prediction of the rest, the model's own vocabulary, another vocabulary with learned ratios.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.core.errors import BadRequest
from proxy.core.jsontext import is_heavy
from proxy.core.request import SYSTEM_ROLES
from proxy.tokens.anchors import Anchor, Anchors, chain, digest_of, scope_digest
from proxy.tokens.families import GENERAL, VOCABULARIES
from proxy.tokens.messages import EXTRAS, CountCache, Counter
from proxy.tokens.models import TRUSTED_SAMPLES, Estimate, EstimateSource, Model, Models
from proxy.tokens.ratios import EMPTY, ROOM, SCRIPTS, Vector, add
from proxy.tokens.verdict import Expectation, Observation
from proxy.tokens.vocabulary import Library

INLINE = 16 * 1024
"""Characters of new text up to which counting happens on the loop: 5 ms."""
_Part: TypeAlias = tuple[bytes, Callable[[Any], Vector], Any]
"""Digest of a part of a request, what counts it, and the part."""


class Meter:
    """Measures prompts and learns from what backends report.

    To be used from one event loop. Texts that are new and large are counted in worker threads. Bodies are
    parsed JSON. `library`: where vocabularies are loaded, by default its own.
    """

    def __init__(self, *, library: Library | None = None) -> None:
        self._library = library or Library()
        self._models = Models(self._library)
        self._counts = CountCache()
        self._anchors = Anchors()

    async def warm(self, key: ModelKey | None = None) -> None:
        """Load the vocabulary of `key`, or the general one: 0.3 s, for half of which all else waits.

        `measure` does so itself. To be called first by whoever only counts texts, which are counted coarsely else.
        """
        if key is None:
            await self._library.load(GENERAL, VOCABULARIES[GENERAL])
        else:
            await self._models.counter(self._models.get(key))

    async def measure(self, key: ModelKey, body: Mapping[str, Any], *, tenant: str = "") -> Estimate:
        """Estimate the prompt tokens of a chat completion body. Reports for other tenants are no anchors.

        Raises:
            BadRequest: `messages` is no list, or something is nested too deeply to be counted.
        """
        messages = body.get("messages") or []
        if not isinstance(messages, list):
            raise BadRequest("messages must be a list", param="messages")
        model = self._models.get(key)
        counter = model.counter or await self._models.counter(model)
        extras = {name: body[name] for name in EXTRAS if body.get(name) is not None}
        options, digests, lead = digest_of(extras), [*map(digest_of, messages)], _leading(messages)
        scope, links = scope_digest(*key, options, tenant), chain(digests[lead:])
        system_digest = chain(digests[:lead])[-1] if lead else b""
        anchor = self._anchors.longest(scope, system_digest, links)
        # What an anchor covers need not be counted.
        first = lead + (0 if anchor is None else anchor.covered)
        parts: list[_Part] = [(options, counter.extras, extras)]
        parts += [(digests[at], counter.message, messages[at]) for at in range(lead)]
        parts += [(digests[at], counter.message, messages[at]) for at in range(first, len(messages))]
        vectors = await self._count(counter, parts)
        system, x = add(vectors[1 : lead + 1]), add(vectors[lead + 1 :])
        fixed = add((vectors[0], system))
        if anchor is None:
            x = add((fixed, x))
        elif anchor.system != system:
            x = tuple(a + b - c for a, b, c in zip(x, system, anchor.system, strict=True))
        known = anchor is not None and x == EMPTY
        expected = _expected(model, anchor, x)
        source: EstimateSource = "exact" if model.exact else "calibrated"
        if anchor is not None:
            source = "backend" if known else "anchored"
        tokens = max(1, round(expected.anchor + expected.predicted))
        return Estimate(
            tokens=tokens,
            upper=tokens if known and anchor and anchor.requested else tokens + round(expected.margin),
            source=source,
            fixed=min(tokens, max(0, round(model.ratios.predict(fixed)))),
            expected=expected,
            key=key,
            scope=scope,
            system_digest=system_digest,
            digests=links,
            system=system,
            x=None if known else x,
            counted_by=counter.id,
        )

    def costs(self, key: ModelKey, messages: Sequence[Any]) -> list[float]:
        """Predict the tokens of each message, for planning what to cut.

        Their sum, with the base and the tools, is what a fresh `measure` says. Synchronous: messages that
        were never measured are counted on the spot, 5 MB of text per second.
        """
        model = self._models.get(key)
        counter = self._models.counter_now(model)
        parts = [(digest_of(message), counter.message, message) for message in messages]
        known = self._counts.find(counter.id, [digest for digest, _, _ in parts])
        return [*map(model.ratios.predict, self._counted(counter, parts, known))]

    def count_text(self, key: ModelKey, text: str, *, cautious: bool = False) -> int:
        """Count the tokens of a piece of text, at least 1 unless it is empty. Not cached.

        `cautious`: at least as many as the vocabulary that counts for the model has for it, whatever ratio was learned of
        prompts: an answer that is counted too low outgrows its window before it is paused.
        """
        if not text:
            return 0
        model = self._models.get(key)
        counted = self._models.counter_now(model).text(text)
        least = sum(counted) if cautious else 1
        return max(1, round(max(least, model.ratios.predict((*counted, *EMPTY[SCRIPTS:])))))

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
        model = self._models.get(estimate.key)
        verdict = model.judge(estimate, prompt_tokens, window, may_cut=may_cut)
        if verdict is Observation.ACCEPTED:
            model.learn(estimate, prompt_tokens)
            same = estimate.counted and prompt_tokens == estimate.tokens
            self._anchor(estimate, prompt_tokens, requested=same)
        return verdict

    def anchor_exact(self, estimate: Estimate, tokens: int) -> None:
        """Take in a count that the backend made on request; it is believed without judging."""
        if tokens > 0:
            self._models.get(estimate.key).learn(estimate, tokens)
            self._anchor(estimate, tokens, requested=True)

    def set_tokenizer(self, key: ModelKey, *, hint: str | None = None, override: str | None = None) -> None:
        """Say which tokenizer a model has by the backend (`hint`), or by the user, who wins over everything."""
        self._models.get(key).resolve(hint=hint, override=override)

    def dump(self, key: ModelKey) -> bytes:
        """Write what was learned of a model, to survive a restart."""
        return self._models.get(key).dump()

    def load(self, key: ModelKey, data: bytes) -> bool:
        """Continue with what `dump` wrote; False where it does not fit the model's vocabulary (any more).

        To be called after `set_tokenizer`, which chooses the vocabulary.
        """
        return self._models.get(key).load(data)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Describe how a model is counted, and how well, for people."""
        return self._models.describe(key)

    async def _count(self, counter: Counter, parts: Sequence[_Part]) -> list[Vector]:
        """Count each part, in a thread where much of it is new."""
        known = self._counts.find(counter.id, [digest for digest, _, _ in parts])
        new = [value for vector, (_, _, value) in zip(known, parts, strict=True) if vector is None]
        if is_heavy(new, INLINE):
            return await asyncio.to_thread(self._counted, counter, parts, known)
        return self._counted(counter, parts, known)

    def _counted(self, counter: Counter, parts: Sequence[_Part], known: Sequence[Vector | None]) -> list[Vector]:
        put = self._counts.put
        return [
            vector if vector is not None else put(counter.id, digest, count(value))
            for vector, (digest, count, value) in zip(known, parts, strict=True)
        ]

    def _anchor(self, estimate: Estimate, tokens: int, *, requested: bool) -> None:
        if estimate.digest:
            anchor = Anchor(len(estimate.digests), tokens, estimate.system, requested)
            self._anchors.put(estimate.scope, estimate.system_digest, estimate.digest, anchor)


def _leading(messages: Sequence[Any]) -> int:
    """Number of leading system messages."""
    roles = (message.get("role") if isinstance(message, dict) else None for message in messages)
    return next((at for at, role in enumerate(roles) if role not in SYSTEM_ROLES), len(messages))


def _expected(model: Model, anchor: Anchor | None, x: Vector) -> Expectation:
    """Tokens expected of a report, where an anchor covers all but `x`."""
    known = 0 if anchor is None else anchor.tokens
    if anchor is not None and x == EMPTY:
        return Expectation(known, 0.0, ROOM, trusted=True)
    predicted, margin = model.ratios.predict(x), model.ratios.margin(x)
    trusted = model.exact or model.samples >= TRUSTED_SAMPLES
    return Expectation(known, predicted, margin, trusted)


__all__ = ["Estimate", "Meter", "Observation"]
