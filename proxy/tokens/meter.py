"""The meter: how many tokens a request's prompt has, by all that is known.

Best first: a count of this very prompt by the backend, one it reported for the beginning of this conversation (an anchor)
plus a prediction of the rest, the model's own vocabulary, another vocabulary with learned ratios.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

from proxy.backends.profile import ModelKey
from proxy.core.errors import BadRequest
from proxy.core.history.checkpoint import CACHE_MARK, without_cache_marks
from proxy.core.jsontext import is_heavy
from proxy.core.request import SYSTEM_ROLES
from proxy.tokens.counter import EXTRAS, Counter, dump
from proxy.tokens.families import GENERAL, VOCABULARIES
from proxy.tokens.images import image_rule
from proxy.tokens.models import TRUSTED_SAMPLES, Estimate, EstimateSource, Expectation, Model, Observation
from proxy.tokens.ratios import EMPTY, ROOM, SCRIPTS, Vector, add
from proxy.tokens.vocabulary import Coarse, Library

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

INLINE = 16 * 1024
"""Characters of new text up to which counting happens on the loop: 5 ms."""
MOST_MODELS, MOST_ANCHORS, MOST_COUNTS = 1024, 32_768, 65_536
"""Models, reported counts and counted messages that are remembered."""
DIGEST_BYTES = 16
_ROLES = {role: role.encode() + b"\0" for role in ("system", "developer", "user", "assistant", "tool")}
_Part: TypeAlias = tuple[bytes, Callable[[Any], Vector], Any]
"""Digest of a part of a request, what counts it, and the part."""


def digest_of(message: Any) -> bytes:
    """Digest of all that a message (any parsed JSON) says, which is not where a cache may end.

    Raises:
        BadRequest: nested too deeply.
    """
    if (
        type(message) is dict
        and len(message) == 2
        and type(content := message.get("content")) is str
        and (role := _ROLES.get(str(message.get("role")))) is not None
    ):
        data = role + content.encode("utf-8", "surrogatepass")
    else:
        text = dump(message)
        if CACHE_MARK in text and (bare := without_cache_marks(message)) is not message:
            return digest_of(bare)
        data = text.encode()
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def chain(digests: Iterable[bytes]) -> list[bytes]:
    """Digest of every prefix of messages with these digests."""
    link = b""
    return [link := blake2b(link + digest, digest_size=DIGEST_BYTES).digest() for digest in digests]


class Recent(Generic[K, V]):
    """What was used last, up to a limit. Usable from threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[K, V] = {}
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Find a value, which counts as a use."""
        with self._lock:
            if (value := self._known.pop(key, None)) is not None:
                self._known[key] = value
            return value

    def put(self, key: K, value: V) -> V:
        """Remember a value, and return it."""
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = value
            if len(self._known) > self._limit:
                del self._known[next(iter(self._known))]
        return value


@dataclass(frozen=True, slots=True)
class Anchor:
    """A reported count: it covers the leading system messages and the first `covered` messages after them."""

    covered: int
    tokens: int
    system: Vector
    """Of the system messages it was reported with; they may be others by now."""
    requested: bool
    """Whether the backend counted on request, rather than reported what it did."""


class Meter:
    """Measures prompts and learns from what backends report.

    To be used from one event loop. Texts that are new and large are counted in worker threads. Bodies are
    parsed JSON. `library`: where vocabularies are loaded, by default its own.
    """

    def __init__(self, *, library: Library | None = None) -> None:
        self._library = library or Library()
        self._models: Recent[ModelKey, Model] = Recent(MOST_MODELS)
        self._counts: Recent[tuple[str, bytes], Vector] = Recent(MOST_COUNTS)
        self._anchors: Recent[bytes, Anchor] = Recent(MOST_ANCHORS)
        """By scope and digest of the prefix: under its own system messages and, because they may tell the time, without."""

    async def warm(self, key: ModelKey | None = None) -> None:
        """Load the vocabulary of `key`, or the general one: 0.3 s, for half of which all else waits.

        `measure` does so itself. To be called first by whoever only counts texts, which are counted coarsely else.
        """
        if key is None:
            await self._library.load(GENERAL, VOCABULARIES[GENERAL])
        else:
            await self._load_counter(self._model(key))

    async def measure(self, key: ModelKey, body: Mapping[str, Any], *, tenant: str = "") -> Estimate:
        """Estimate the prompt tokens of a chat completion body. Reports for other tenants are no anchors.

        Raises:
            BadRequest: `messages` is no list, or something is nested too deeply to be counted.
        """
        messages = body.get("messages") or []
        if not isinstance(messages, list):
            raise BadRequest("messages must be a list", param="messages")
        model = self._model(key)
        counter = model.counter or await self._load_counter(model)
        extras = {name: body[name] for name in EXTRAS if body.get(name) is not None}
        options, digests = digest_of(extras), [*map(digest_of, messages)]
        roles = (message.get("role") if isinstance(message, dict) else None for message in messages)
        lead = next((at for at, role in enumerate(roles) if role not in SYSTEM_ROLES), len(messages))
        scope = blake2b(repr((*key, options, tenant)).encode(), digest_size=DIGEST_BYTES).digest()
        links, system_digest = chain(digests[lead:]), b"".join(chain(digests[:lead])[-1:])
        anchor = self._longest_anchor(scope, system_digest, links)
        # What an anchor covers need not be counted.
        first = lead + (0 if anchor is None else anchor.covered)
        parts: list[_Part] = [(options, counter.extras, extras)]
        parts += [(digests[at], counter.message, messages[at]) for at in (*range(lead), *range(first, len(messages)))]
        vectors = await self._count(counter, parts)
        system, x = add(vectors[1 : lead + 1]), add(vectors[lead + 1 :])
        fixed = add((vectors[0], system))
        if anchor is None:
            x = add((fixed, x))
        elif anchor.system != system:
            x = tuple(a + b - c for a, b, c in zip(x, system, anchor.system, strict=True))
        expected = _expected(model, anchor, x)
        known = anchor is not None and x == EMPTY
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
        model = self._model(key)
        counter = self._counter(model)
        vectors = self._counted(counter, [(digest_of(message), counter.message, message) for message in messages])
        return [*map(model.ratios.predict, vectors)]

    def count_text(self, key: ModelKey, text: str, *, cautious: bool = False) -> int:
        """Count the tokens of a piece of text, at least 1 unless it is empty. Not cached.

        `cautious`: at least as many as the vocabulary that counts for the model has for it, whatever ratio was learned of
        prompts: an answer that is counted too low outgrows its window before it is paused.
        """
        if not text:
            return 0
        model = self._model(key)
        counted = self._counter(model).text(text)
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
        verdict = self._model(estimate.key).judge(estimate, prompt_tokens, window, may_cut=may_cut)
        if verdict is Observation.ACCEPTED:
            self._learn(estimate, prompt_tokens, requested=estimate.counted and prompt_tokens == estimate.tokens)
        return verdict

    def anchor_exact(self, estimate: Estimate, tokens: int) -> None:
        """Take in a count that the backend made on request; it is believed without judging."""
        if tokens > 0:
            self._learn(estimate, tokens, requested=True)

    def set_tokenizer(self, key: ModelKey, *, hint: str | None = None, override: str | None = None) -> None:
        """Say which tokenizer a model has by the backend (`hint`), or by the user, who wins over everything."""
        self._model(key).resolve(hint=hint, override=override)

    def dump(self, key: ModelKey) -> bytes:
        """Write what was learned of a model, to survive a restart."""
        return self._model(key).dump()

    def load(self, key: ModelKey, data: bytes) -> bool:
        """Continue with what `dump` wrote; False where it does not fit the model's vocabulary (any more).

        To be called after `set_tokenizer`, which chooses the vocabulary.
        """
        return self._model(key).load(data)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Describe how a model is counted, and how well, for people."""
        model = self._model(key)
        problem = self._library.failures.get(model.family or GENERAL)
        return {**model.describe(), **({"problem": problem} if problem else {})}

    def _model(self, key: ModelKey) -> Model:
        return self._models.get(key) or self._models.put(key, Model(key))

    async def _load_counter(self, model: Model) -> Counter:
        """Load the vocabulary of a model, or the general one where that fails."""
        family = model.resolution.family
        load = (family and family.load) or VOCABULARIES[model.vocabulary]
        if await self._library.load(model.vocabulary, load) is None and model.vocabulary != GENERAL:
            model.begin(general=True)
            return await self._load_counter(model)
        return self._counter(model)

    def _counter(self, model: Model) -> Counter:
        """Count with what is loaded: the model's vocabulary, else a coarse one that is not remembered."""
        if model.counter is None:
            rule, vocabulary = image_rule(model.key[1]), self._library.get(model.vocabulary)
            if vocabulary is None:
                return Counter(Coarse(), exact=False, rule=rule)
            model.counter = Counter(vocabulary, exact=model.exact, rule=rule)
        return model.counter

    async def _count(self, counter: Counter, parts: Sequence[_Part]) -> list[Vector]:
        """Count each part, in a thread where much of it is new."""
        counts = self._counts
        known = [counts.get((counter.id, digest)) for digest, _, _ in parts]
        new = [value for vector, (_, _, value) in zip(known, parts, strict=True) if vector is None]
        if is_heavy(new, INLINE):
            return await asyncio.to_thread(self._counted, counter, parts)
        return [
            counts.put((counter.id, digest), count(value)) if vector is None else vector
            for vector, (digest, count, value) in zip(known, parts, strict=True)
        ]

    def _counted(self, counter: Counter, parts: Iterable[_Part]) -> list[Vector]:
        counts, vectors = self._counts, list[Vector]()
        for digest, count, value in parts:
            vector = counts.get((counter.id, digest))
            vectors.append(vector if vector is not None else counts.put((counter.id, digest), count(value)))
        return vectors

    def _longest_anchor(self, scope: bytes, system: bytes, digests: Sequence[bytes]) -> Anchor | None:
        """Find the anchor of the longest prefix, one with the same system messages before any other."""
        for start in (scope + system, scope):
            for digest in reversed(digests):
                if (anchor := self._anchors.get(start + digest)) is not None:
                    return anchor
        return None

    def _learn(self, estimate: Estimate, tokens: int, *, requested: bool) -> None:
        """Learn from a count that is believed, and anchor what goes on with this prompt."""
        self._model(estimate.key).learn(estimate, tokens)
        if estimate.digests:
            anchor = Anchor(len(estimate.digests), tokens, estimate.system, requested)
            for start in {estimate.scope + estimate.system_digest, estimate.scope}:
                self._anchors.put(start + estimate.digests[-1], anchor)


def _expected(model: Model, anchor: Anchor | None, x: Vector) -> Expectation:
    """Tokens expected of a report, where an anchor covers all but `x`."""
    if anchor is not None and x == EMPTY:
        return Expectation(anchor.tokens, 0.0, ROOM, trusted=True)
    predicted = model.ratios.predict(x)
    trusted = model.exact or model.samples >= TRUSTED_SAMPLES
    return Expectation(anchor.tokens if anchor else 0, predicted, model.ratios.margin(x), trusted)


__all__ = ["Estimate", "Meter", "Observation"]
