"""The meter: estimates the tokens of a request's prompt from the best source there is.

Best first: the backend's count of this very prompt; its count of the beginning of this conversation (an anchor) plus a
prediction of the rest; the model's own vocabulary; another vocabulary with learned ratios.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.core.history.checkpoint import DIGEST_BYTES, NO_DIGESTS, Digests, digest_of, links
from proxy.core.jsontext import is_heavy
from proxy.core.request import leading_system
from proxy.net.tasks import offload_if
from proxy.tokens.cache import Cache, CacheMemory
from proxy.tokens.counter import EXTRAS, Counter, image_rule
from proxy.tokens.families import UNKNOWN, VOCABULARIES
from proxy.tokens.models import CUT_RATIO, Estimate, EstimateSource, Model, Observation, is_half, verdict_on
from proxy.tokens.ratios import EMPTY, SCRIPTS, Vector, add, by_script, predicted
from proxy.tokens.vocabulary import Coarse, Library

INLINE = 16 * 1024
"""Characters of new text up to which counting happens on the event loop; takes up to 5 ms."""
_LEAST = 2**20
"""Fewest bytes for caches, whatever is set: with less, a request would not find the counts that it has just made."""
_MODEL, _VECTOR, _ANCHOR = 8192, 500, 200
"""Approximate bytes of a model's state, of the count of a message, and of an anchor."""
_Part: TypeAlias = tuple[bytes, Callable[[Any], Vector], Any]
"""Digest of a part of a request, the function that counts it, and the part."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A reported count: it covers the leading system messages and the first `covered` messages after them."""

    covered: int
    tokens: int
    system: Vector
    """Count of the system messages at the time of the report; they may have changed since."""
    requested: bool
    """Whether the backend counted on request, instead of reporting usage with an answer."""


class Meter:
    """Measures prompts and learns from what backends report.

    Use it from one event loop. Large new texts are counted in worker threads. Bodies are parsed JSON. `library` loads the
    vocabularies, by default one of its own; `cache_bytes` is the limit of `memory`.
    """

    def __init__(self, cache_bytes: int = 2**26, *, library: Library | None = None) -> None:
        self.memory = memory = CacheMemory(max(cache_bytes, _LEAST))
        """Memory bound of everything kept for later requests, shared with caches elsewhere."""
        self._library = library or Library()
        self._models = Cache[ModelKey, Model](memory)
        self._counts = Cache[tuple[str, bytes], Vector](memory)
        # By tenant: a report for one client's prompt must not count for another's.
        self._anchors = Cache[bytes, Anchor](memory)
        """Anchors by scope and digest of the prefix, both with and without the system messages, which may contain the time."""

    def model(self, key: ModelKey) -> Model:
        """Return the state of a model: how it is counted, and what was learned about it."""
        return self._models.get(key) or self._models.put(key, Model(key), _MODEL)

    async def measure(
        self, key: ModelKey, body: Mapping[str, Any], *, tenant: str = "", known: Digests = NO_DIGESTS
    ) -> Estimate:
        """Estimate the prompt tokens of a chat completion body. Reports for other tenants do not serve as anchors."""
        messages = body.get("messages") or []
        model = self.model(key)
        counter = model.counter or await self._load_counter(model)
        extras = {name: body[name] for name in EXTRAS if body.get(name) is not None}
        options, digests = digest_of(extras), [digest_of(each, known) for each in messages]
        lead = leading_system(messages)
        scope = blake2b(repr((*key, options, tenant)).encode(), digest_size=DIGEST_BYTES).digest()
        chain, system_digest = links(digests[lead:]), b"".join(links(digests[:lead])[-1:])
        # Take the anchor of the longest prefix, and prefer one with the same system messages to any other.
        starts = (start + digest for start in (scope + system_digest, scope) for digest in reversed(chain))
        anchor = next((found for key in starts if (found := self._anchors.get(key)) is not None), None)
        # Messages covered by the anchor need not be counted.
        first = lead + (0 if anchor is None else anchor.covered)
        parts: list[_Part] = [(options, counter.extras, extras)]
        parts += [(digests[at], counter.message, messages[at]) for at in (*range(lead), *range(first, len(messages)))]
        new = [value for digest, _, value in parts if self._counts.get((counter.id, digest)) is None]
        vectors = await offload_if(is_heavy(new, INLINE), self._count, counter.id, parts)
        system, x = add(vectors[1 : lead + 1]), add(vectors[lead + 1 :])
        fixed = add((vectors[0], system))
        if anchor is None:
            x = add((fixed, x))
        elif anchor.system != system:
            x = tuple(a + b - c for a, b, c in zip(x, system, anchor.system, strict=True))
        expected = model.expected(0 if anchor is None else anchor.tokens, x)
        source: EstimateSource = "exact" if model.exact else "calibrated"
        if anchor is not None:
            source = "anchored" if any(x) else "backend"
        tokens = max(1, round(expected.anchor + expected.predicted))
        certain = source == "backend" and anchor is not None and anchor.requested
        return Estimate(
            tokens=tokens,
            upper=tokens if certain else tokens + round(expected.margin),
            source=source,
            fixed=min(tokens, max(0, round(model.ratios.predict(fixed)))),
            expected=expected,
            key=key,
            scope=scope,
            system_digest=system_digest,
            digests=chain,
            system=system,
            x=None if source == "backend" else x,
        )

    def costs(self, key: ModelKey, messages: Sequence[Any]) -> list[float]:
        """Predict the tokens of each message, for planning what to cut.

        Their sum, with the base and the tools, is what a fresh `measure` says. Synchronous: messages that
        were never measured are counted on the spot, 5 MB of text per second.
        """
        return self.pricing(key)(messages)

    def pricing(self, key: ModelKey) -> Callable[[Sequence[Any]], list[float]]:
        """Return `costs` for a model by what is known of its tokens now.

        A plan needs all of its figures from one state: if a count came between two of them, their difference would be an
        error of a few percent of the whole prompt.
        """
        model = self._models.get(key) or self.model(key)
        counter, weights = model.counter or self._counter(model), tuple(model.ratios.weights)

        def costs(messages: Sequence[Any]) -> list[float]:
            parts: list[_Part] = [(digest_of(message), counter.message, message) for message in messages]
            return [predicted(weights, x) for x in self._count(counter.id, parts)]

        return costs

    def count_text(self, key: ModelKey, text: str, *, cautious: bool = False) -> int:
        """Count the tokens of a piece of text, at least 1 unless it is empty. Not cached.

        `cautious`: never count fewer than the vocabulary itself does, even if a lower ratio was learned from prompts:
        an answer that is counted too low outgrows its window before it is paused.
        """
        # A template that drops the end of a prompt pulled the learned ratio down: answers were counted a tenth too low,
        # and reached the window's end before they were paused.
        if not text:
            return 0
        model = self.model(key)
        counter = model.counter or self._counter(model)
        counted = counter.vocabulary.count(text)
        predicted = model.ratios.predict((*by_script(text, counted), *EMPTY[SCRIPTS:]))
        return max(1, round(max(predicted, counted if cautious else 0)))

    def observe(
        self, estimate: Estimate, prompt_tokens: int, *, window: int | None = None, may_cut: bool = True
    ) -> Observation:
        """Learn from the prompt tokens that the backend reported for a measured request.

        Args:
            estimate: result of `measure` for the body that was sent.
            prompt_tokens: tokens of the whole prompt, the cached part included.
            window: context window in tokens as reported by the backend, or None; it helps to detect a silent cut.
            may_cut: whether the backend is one that silently cuts prompts.
        """
        model = self.model(estimate.key)
        verdict = verdict_on(estimate.expected, prompt_tokens, window, may_cut=may_cut)
        model.cuts += verdict is Observation.CUT
        model.rejections += verdict is Observation.REJECTED
        if verdict is Observation.ACCEPTED:
            self._learn(estimate, prompt_tokens, requested=estimate.counted and prompt_tokens == estimate.tokens)
        return verdict

    def shows_cut(self, estimate: Estimate, tokens: int, window: int) -> bool:
        """Return whether the backend has cut a prompt, given the `tokens` that it read of it."""
        expected = estimate.expected
        return is_half(tokens, window) or (expected.trusted and tokens < CUT_RATIO * expected.lowest)

    def anchor_exact(self, estimate: Estimate, tokens: int) -> None:
        """Take in a count that the backend made on request; it is trusted without a check."""
        if tokens > 0:
            self._learn(estimate, tokens, requested=True)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Describe how a model is counted, and how well, for people."""
        model = self.model(key)
        problem = self._library.failures.get(model.family.vocabulary)
        return {**model.describe(), **({"problem": problem} if problem else {})}

    async def _load_counter(self, model: Model) -> Counter:
        """Load the vocabulary of a model, or the general one if that fails."""
        family = model.counted_as
        load = family.load or VOCABULARIES[family.vocabulary]
        if await self._library.load(family.vocabulary, load) is None and family is not UNKNOWN:
            model.begin(UNKNOWN)
            return await self._load_counter(model)
        return self._counter(model)

    def _counter(self, model: Model) -> Counter:
        """Return a counter with the model's vocabulary or, while that is not loaded, a coarse one that is not kept."""
        if model.counter is None:
            rule, vocabulary = image_rule(model.key[1]), self._library.get(model.counted_as.vocabulary)
            if vocabulary is None:
                return Counter("coarse", Coarse(), rule)
            model.counter = Counter(f"{vocabulary.id} {rule.__name__}", vocabulary, rule)
        return model.counter

    def _count(self, counter: str, parts: Iterable[_Part]) -> list[Vector]:
        """Count each part, with cached counts of the counter with that id. Slow if much is new; usable from threads."""
        counts, keyed = self._counts, (((counter, digest), count, value) for digest, count, value in parts)
        return [counts.get(key) or counts.put(key, count(value), _VECTOR) for key, count, value in keyed]

    def _learn(self, estimate: Estimate, tokens: int, *, requested: bool) -> None:
        """Learn from a trusted count, and keep it as the anchor of prompts that continue this one."""
        self.model(estimate.key).learn(estimate, tokens)
        if estimate.digests:
            anchor = Anchor(len(estimate.digests), tokens, estimate.system, requested)
            for start in {estimate.scope + estimate.system_digest, estimate.scope}:
                self._anchors.put(start + estimate.digests[-1], anchor, _ANCHOR)


__all__ = ["Estimate", "Meter", "Observation"]
