"""Vectors from an embedding model behind one of the backends, to rank passages by meaning as well as by words.

Vectors are cached by digest, so a turn pays for its new passages only. A request waits a moment for those that are
missing, then goes on without them; those that come later serve the next turn. A model that fails is not asked for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from proxy.core.errors import UpstreamUnavailable
from proxy.core.jsontext import dumps, loads
from proxy.job import Job
from proxy.net.inflate import Undecodable
from proxy.net.responses import body_of, plain_body
from proxy.net.tasks import offload_if, spawn
from proxy.recall.dense import Embedding, nearness, texts_for, vector_of
from proxy.routing import Route, Router
from proxy.summariser import credential_headers

_log = logging.getLogger("spillway.embedding")

WAIT = 2.0
"""Seconds that a request waits for vectors."""
LONGEST = 120.0
"""Seconds after which one conversation's passages are given up for now."""
REST = 30.0
"""Seconds for which a model that failed is not asked."""
BATCH = 32
"""Texts in one request."""
AT_ONCE = 4
"""Conversations that are embedded at a time."""
MOST_PASSAGES = 4000
"""Passages of a conversation, about 400,000 tokens: vectors of longer ones are not compared."""
MOST_BYTES = 64 * 2**20
"""Bytes of vectors that are kept; a passage has 4 for each dimension."""
_LONGEST_ANSWER = 16 * 2**20
_HEAVY = 100_000
"""Numbers from which vectors are compared in a thread."""
_TOO_LONG = frozenset({400, 413, 422, 500})
"""Statuses with which backends refuse a text that is too long for the model (llama.cpp: 500)."""
_PATH = b"/v1/embeddings"


class _Failed(Exception):
    """A failure after which the model is not asked for a while; the text says why."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Texts to be embedded, and the digests under which they are kept, the query's first."""

    route: Route
    texts: Sequence[str]
    keys: Sequence[bytes]


class Embedder:
    """Scores passages by their similarity to a turn's query, where the user chose a model for that."""

    def __init__(self, *, router: Router) -> None:
        self._router = router
        self._cache: OrderedDict[bytes, Embedding] = OrderedDict()
        self._size = 0
        self._resting: dict[str, float] = {}
        self._filling: dict[str, asyncio.Task[None]] = {}

    async def near(self, job: Job, query: str, passages: Sequence[str]) -> list[float] | None:
        """Score the similarity of each passage to a query; None: rank by words alone."""
        model = job.settings.recall_model
        if model is None or not query or not 0 < len(passages) <= MOST_PASSAGES:
            return None
        if self._resting.get(model, 0.0) > job.outcome.clock():
            return None
        try:
            async with asyncio.timeout(WAIT):
                wanted = _wanted(job, await self._router.route(model), query, passages)
                known = all(key in self._cache for key in wanted.keys)
                if not (known or await self._filled(job, model, wanted)):
                    return None
        except TimeoutError:
            return None
        vectors = [self._cache.get(key) for key in wanted.keys]
        if not vectors[0] or None in vectors:
            return None
        for key in wanted.keys:
            self._cache.move_to_end(key)
        found = [vector for vector in vectors if vector is not None]
        return await offload_if(len(found) * len(found[0]) > _HEAVY, nearness, found[0], found[1:])

    async def _filled(self, job: Job, model: str, wanted: _Wanted) -> bool:
        """Have what is missing embedded; False: it is being done, or too much is, or the request is only looked at."""
        if job.outcome.silent or job.scope in self._filling or len(self._filling) >= AT_ONCE:
            return False
        task = spawn(self._fill(job, model, wanted), name="embedding")
        self._filling[job.scope] = task
        task.add_done_callback(lambda _: self._filling.pop(job.scope, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # The time is over, and it goes on for the next turn; or the client has left, and there may be none.
            if job.exchange.gone:
                task.cancel()
            raise
        return True

    async def _fill(self, job: Job, model: str, wanted: _Wanted) -> None:
        places = {key: at for at, key in enumerate(wanted.keys) if key not in self._cache}
        missing = list(places.values())
        try:
            async with asyncio.timeout(LONGEST):
                for start in range(0, len(missing), BATCH):
                    batch = missing[start : start + BATCH]
                    vectors = await _embedded(job, wanted.route, [wanted.texts[at] for at in batch])
                    _check_size(vectors, len(wanted.texts))
                    for at, vector in zip(batch, vectors, strict=True):
                        self._keep(wanted.keys[at], vector)
        except (_Failed, UpstreamUnavailable, TimeoutError) as error:
            reason = str(error) if isinstance(error, _Failed) else type(error).__name__
            _log.warning("embeddings by %s failed: %s; words alone rank for %g s", model, reason, REST)
            self._resting[model] = job.outcome.clock() + REST

    def _keep(self, key: bytes, vector: Embedding) -> None:
        old = self._cache.pop(key, None)
        self._size += _size(vector) - (0 if old is None else _size(old))
        self._cache[key] = vector
        while self._size > MOST_BYTES:
            self._size -= _size(self._cache.popitem(last=False)[1])


def _check_size(vectors: Sequence[Embedding], count: int) -> None:
    if max(map(_size, vectors)) * count > MOST_BYTES:
        raise _Failed("its vectors are too long to be kept for so many passages")


_OVERHEAD = 200
"""Bytes that a vector and its key take besides its numbers."""


def _size(vector: Embedding) -> int:
    return _OVERHEAD + 4 * len(vector)


def _wanted(job: Job, route: Route, query: str, passages: Sequence[str]) -> _Wanted:
    """Vectors are shared by who could have asked for them: one tenant, one model."""
    query_text, others = texts_for(route.model, query, passages)
    texts = [query_text, *others]
    base = blake2b(f"{job.exchange.tenant}|{route.upstream.name}|{route.model}".encode(), digest_size=16)
    keys = []
    for text in texts:
        digest = base.copy()
        digest.update(b"\0" + text.encode("utf-8", "surrogatepass"))
        keys.append(digest.digest())
    return _Wanted(route, texts, keys)


async def _embedded(job: Job, route: Route, texts: Sequence[str]) -> list[Embedding]:
    """The vector of each text; empty for one that the model does not take.

    Raises:
        _Failed: it took none of them, or answered something else.
        UpstreamUnavailable: the backend can't be reached.
    """
    together = await _request_vectors(job, route, texts)
    if together is not None:
        return together
    vectors: list[Embedding] = []
    for text in texts:
        alone = await _request_vectors(job, route, [text]) if len(texts) > 1 else None
        vectors += alone or [vector_of(())]
        if len(vectors) == 2 and not any(vectors):
            break
    if not any(vectors):
        raise _Failed("it takes no text")
    return vectors


async def _request_vectors(job: Job, route: Route, texts: Sequence[str]) -> list[Embedding] | None:
    """Ask once; None: one of them may be too long."""
    response = await route.upstream.send(
        "POST",
        _PATH,
        credential_headers(job, same=route.upstream is job.route.upstream),
        dumps({"model": route.model, "input": list(texts), "encoding_format": "float"}),
    )
    if response.status_code in _TOO_LONG:
        await response.aclose()
        return None
    if response.status_code != 200:
        await response.aclose()
        raise _Failed(f"status {response.status_code}")
    body = await body_of(response, _LONGEST_ANSWER)
    try:
        plain = plain_body(response, body, _LONGEST_ANSWER)
        return await offload_if(len(body) > 2**17, _vectors, plain or b"", len(texts))
    except (Undecodable, LookupError, TypeError, ValueError, OverflowError):
        raise _Failed("its answer holds no vectors") from None


def _vectors(body: bytes, count: int) -> list[Embedding]:
    """The vectors in the answer to a request for so many.

    Raises:
        LookupError, TypeError, ValueError, OverflowError: it is no such answer.
    """
    found = {each["index"]: vector_of(each["embedding"]) for each in loads(body)["data"]}
    return [found[number] for number in range(count)]
