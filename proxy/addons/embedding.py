"""Vectors from an embedding model at one of the backends, to rank passages by meaning as well as by words.

Vectors are cached by digest, so a turn pays only for its new passages. A request waits a moment for missing vectors, then goes on
without them; vectors that come later serve the next turn. A model that fails is not asked for a while.
"""

import asyncio
import logging
import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from math import sqrt
from operator import mul
from typing import TypeAlias

from proxy.backends.profile import ModelKey
from proxy.core.errors import UpstreamUnavailable
from proxy.core.history.embedded import authored_text
from proxy.core.jsontext import dumps, loads
from proxy.core.request import Message, text_of
from proxy.core.settings import AUTO
from proxy.job import Job
from proxy.net.tasks import offload_if, spawn
from proxy.net.transport import body_of
from proxy.recall.words import terms
from proxy.routing import Route, Router
from proxy.tokens.cache import Cache, CacheMemory

_log = logging.getLogger("spillway.embedding")

WAIT = 2.0
"""Seconds that a request waits for vectors."""
LONGEST = 120.0
"""Seconds after which embedding one conversation's passages is given up for now."""
REST = 30.0
"""Seconds for which a model that failed is not asked again."""
BATCH = 32
"""Texts in one request."""
AT_ONCE = 4
"""Most conversations embedded at a time."""
MOST_PASSAGES = 4000
"""Most passages of a conversation (about 400,000 tokens): longer ones are ranked by words alone."""
_LONGEST_ANSWER = 16 * 2**20
_HEAVY = 100_000
"""Numbers in vectors above which they are compared in a thread."""
_PREFIXES = (
    (re.compile("nomic-embed-text"), "search_query: ", "search_document: "),
    (re.compile(r"(?<![a-z0-9])e5(?![a-z0-9])"), "query: ", "passage: "),
    (
        re.compile(r"qwen3.?embedding"),
        "Instruct: Given a message in a conversation, retrieve earlier passages of it that it refers to\nQuery:",
        "",
    ),
)
"""Prefixes of queries and passages that models were trained with, from their model cards."""
_FEW = 3
"""Terms below which a message is understood only with the one before it."""
_CHARACTERS = 1_000
"""Most characters of a query (its end) and of a passage (its beginning): some models read only 512 tokens."""

Embedding: TypeAlias = "array[float]"
"""Vector of length 1 in 32-bit floats; empty if the model gives none."""


class _Failed(Exception):
    """Failure after which the model is not asked for a while; the text says why."""


class Embedder:
    """Scores passages by their similarity to a turn's query, if an embedding model is configured."""

    def __init__(self, router: Router, memory: CacheMemory) -> None:
        self._router = router
        self._cache = Cache[bytes, Embedding](memory)
        self._resting: dict[ModelKey, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, dict[bytes, str]] = {}
        """Passages still to be embedded, by the scope whose task does that, newest first."""

    async def similarities(self, job: Job, query: str, passages: Sequence[str]) -> list[float] | None:
        """Score each passage by its similarity to a query, from 0 to 2 (0 without a vector); None: rank by words alone."""
        model = job.settings.recall_model
        if model is None or not query or not 0 < len(passages) <= MOST_PASSAGES:
            return None
        texts: list[tuple[bytes, str]] = []
        try:
            async with asyncio.timeout(WAIT):
                auto = model == AUTO
                route = await (self._router.loaded_embedder(job.route.upstream) if auto else self._router.route(model))
                if route is None or self._resting.get(route.key, 0.0) > job.outcome.clock():
                    return None
                texts = _texts_by_digest(job.exchange.tenant, route, query, passages)
                missing = {key: text for key, text in reversed(texts) if self._cache.get(key) is None}
                if job.outcome.observers and texts[0][0] in missing:
                    # Embed the query by itself first, so that it does not queue after an earlier turn's passages.
                    await self._fill(job, route, dict(texts[:1]))
                    del missing[texts[0][0]]
                if missing and self._resting.get(route.key, 0.0) <= job.outcome.clock():
                    await self._embed(job, route, missing)
        except TimeoutError:
            pass  # rank with the vectors that are there
        if not texts:
            return None
        vectors = [self._cache.get(key) or vector_of(()) for key, _ in texts]
        if not vectors[0] or not any(vectors[1:]):
            return None
        return await offload_if(len(vectors) * len(vectors[0]) > _HEAVY, compare, vectors[0], vectors[1:])

    async def _embed(self, job: Job, route: Route, texts: dict[bytes, str]) -> None:
        """Have passages embedded; if the scope's task is running, it takes these next.

        Nothing happens if too many tasks are running, or if the request is only a preview, which nobody observes.
        """
        if not job.outcome.observers or (job.scope not in self._running and len(self._running) >= AT_ONCE):
            return
        self._missing[job.scope] = texts
        if job.scope in self._running:
            return
        task = spawn(self._fill(job, route), name="embedding")
        self._running[job.scope] = task
        task.add_done_callback(lambda _: (self._running.pop(job.scope, None), self._missing.pop(job.scope, None)))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # On a timeout the task goes on for the next turn; if the client has left, there may not be one.
            if job.exchange.gone:
                task.cancel()
            raise

    async def _fill(self, job: Job, route: Route, texts: dict[bytes, str] | None = None) -> None:
        """Fill the cache with the vectors of `texts`, or if None of the scope's missing passages, including later additions."""
        try:
            async with asyncio.timeout(LONGEST):
                while waiting := self._missing[job.scope] if texts is None else texts:
                    next_texts = [(key, waiting.pop(key)) for key in list(waiting)[:BATCH]]
                    batch = [each for each in next_texts if self._cache.get(each[0]) is None]
                    vectors = await _request_vectors(job, route, [text for _, text in batch]) if batch else []
                    for (key, _), vector in zip(batch, vectors, strict=True):
                        self._cache.put(key, vector, 4 * len(vector))
        except (_Failed, UpstreamUnavailable, TimeoutError) as error:
            reason = str(error) if isinstance(error, _Failed) else type(error).__name__
            _log.warning(
                "embeddings from %s failed: %s; passages are ranked by words alone for %g s", route.model, reason, REST
            )
            self._resting[route.key] = job.outcome.clock() + REST


def query_text(messages: Sequence[Message], newest: int) -> str:
    """Return the query text of the turn that begins with the user message at `newest`; empty if it has no words."""
    text = authored_text(messages[newest])[-_CHARACTERS:].strip()
    if text and newest and len(terms(text)) < _FEW:
        text = f"{text_of(messages[newest - 1])[-_CHARACTERS:]}\n{text}"[-_CHARACTERS:]
    return text


def texts_for(model: str, query: str, passages: Sequence[str]) -> list[str]:
    """Return a query and passages as this embedding model was trained to read them."""
    of_model = (prefixes for pattern, *prefixes in _PREFIXES if pattern.search(model.lower()))
    before_query, before_passage = next(of_model, ("", ""))
    return [before_query + query, *(before_passage + passage[:_CHARACTERS] for passage in passages)]


def vector_of(values: Sequence[float]) -> Embedding:
    """Scale values to a vector of length 1; empty if their length is 0 or infinite.

    Raises:
        TypeError, ValueError, OverflowError: the values are not numbers, or out of range.
    """
    length = sqrt(sum(map(mul, values, values)))
    return array("f", (value / length for value in values) if 0 < length < float("inf") else ())


def compare(query: Embedding, passages: Sequence[Embedding]) -> list[float]:
    """Score each passage by its similarity to a query, from 0 to 2; a missing vector, or one of another size, scores 0."""
    size = len(query)
    return [1 + sum(map(mul, query, passage)) if len(passage) == size else 0.0 for passage in passages]


def _texts_by_digest(tenant: str, route: Route, query: str, passages: Sequence[str]) -> list[tuple[bytes, str]]:
    """Pair each text, the query first, with its cache key. Vectors are shared only within one tenant and model."""
    scope = blake2b(f"{tenant}|{route.upstream.key}|{route.model}".encode()).digest()[:16]
    texts = texts_for(route.model, query, passages)
    return [
        (blake2b(text.encode("utf-8", "surrogatepass"), key=scope, digest_size=16).digest(), text) for text in texts
    ]


async def _request_vectors(job: Job, route: Route, texts: Sequence[str]) -> list[Embedding]:
    """Request the vector of each text.

    Raises:
        _Failed: the backend answered with anything but these vectors, or would have to load the model first.
        UpstreamUnavailable: the backend cannot be reached.
    """
    # Loading a model could throw the chat model out of memory, so one that nobody named is looked at before each request.
    if job.settings.recall_model == AUTO and await route.known.loaded_window() is None:
        raise _Failed("it is not loaded any more")
    response = await route.upstream.send(
        "POST",
        b"/v1/embeddings",
        job.backend_headers(route),
        dumps({"model": route.model, "input": list(texts), "encoding_format": "float"}),
        plain=True,
    )
    if response.status_code != 200:
        await response.aclose()
        raise _Failed(f"status {response.status_code}")
    body = await body_of(response, _LONGEST_ANSWER)
    try:
        return await offload_if(len(body) > 2**17, _parse_vectors, body, len(texts))
    except (LookupError, TypeError, ValueError, OverflowError):
        raise _Failed("its answer holds no vectors") from None


def _parse_vectors(body: bytes, count: int) -> list[Embedding]:
    found = {each["index"]: vector_of(each["embedding"]) for each in loads(body)["data"]}
    return [found[number] for number in range(count)]
