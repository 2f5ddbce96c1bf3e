"""Storage for checkpoints, responses and learned numbers, which survives a restart and never fails a request.

Operations are bounded in time, and a database in trouble is left alone: after a failure nothing is tried for `PAUSE` seconds.
Meanwhile reads answer as if nothing were stored, and what is new is held in memory.

To add a database: one file with a `Driver`, and a line in `open_store`; the contract tests then cover it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from proxy.core.history.checkpoint import DIGEST_BYTES, Checkpoint
from proxy.store.driver import DOCUMENT, Driver, StoreLimits, decode, encode, refusal
from proxy.store.sqlite import SqliteDriver, open_sqlite

__all__ = ["Store", "StoreLimits", "open_store"]

T = TypeVar("T")
D = TypeVar("D")

PAUSE = 5.0
"""Seconds without a try after a failure."""
BULK_TIMEOUT = 30.0
"""Seconds that purging, exporting or closing may take; no chat request waits for these."""
LEASE = 30.0
"""Seconds after which another process may take a claim over: its owner has died, or is slow."""
POLL = 0.1
"""Seconds between two looks at the claim of another process."""
SHELTER_BYTES = 2**24
"""Bytes of checkpoints held in memory while the database does not take them."""

_log = logging.getLogger("spillway.store")


@dataclass(slots=True)
class Breaker:
    """Circuit breaker for one kind of operation; times are monotonic seconds."""

    trouble: str
    """A line for the log; `%s` stands for the reason."""
    problem: str = ""
    """Empty: the last operation worked."""
    retry_at: float = 0.0

    def admits(self, now: float) -> bool:
        """Return whether to try; after a failure that is one operation per pause, and this one is it."""
        if self.problem:
            if now < self.retry_at:
                return False
            self.retry_at = now + PAUSE
        return True


class Store:
    """Checkpoints by scope and digest, and small values, over any driver.

    A database that is lost, slow or full is no error. There are two breakers, because a database that is full or
    read-only still answers reads, and answering those is what keeps conversations short.
    """

    def __init__(self, driver: Driver, limits: StoreLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives monotonic seconds."""
        self._driver = driver
        self._limits = limits
        self._now = now
        self._reads = Breaker("is unavailable (%s): working without it")
        self._writes = Breaker("takes no writes (%s): what is new is kept in memory")
        self._shelter: Driver | None = None
        """What the database did not take; None: it has taken everything."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def healthy(self) -> bool:
        """True if the last operation worked; a failure is logged once."""
        return not (self._reads.problem or self._writes.problem)

    async def check(self) -> str:
        """Try a write now: `ok`, or in a few words what is wrong. Takes about as long as any operation."""
        await self.value("checked", b"")
        return self._reads.problem or self._writes.problem or "ok"

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """Return the stored checkpoint of `scope` whose digest comes first in `digests` (longest prefix first)."""
        sheltered = None if self._shelter is None else await self._shelter.find(scope, digests)
        end = len(digests) if sheltered is None else sheltered[0]
        start = 0
        while start < end:
            found = await self._run(partial(self._driver.find, scope, digests[start:end]), None)
            if found is None:
                break
            start += found[0] + 1
            if (checkpoint := decode(found[1], scope, digests[start - 1])) is not None:
                return checkpoint
        return None if sheltered is None else decode(sheltered[1], scope, digests[end])

    async def put(self, checkpoint: Checkpoint) -> bool:
        """Store it, with what leads to it from its alias; one of the same scope and digest is replaced.

        False: it never can be, and is left out.
        """
        if checkpoint.alias:
            old = await self.find(checkpoint.scope, [checkpoint.digest])
            if old is not None and old.alias not in ("", checkpoint.alias):
                await self.drop(old.scope, bytes.fromhex(old.alias))
            leads, alias = {"checkpoint": checkpoint.digest.hex()}, bytes.fromhex(checkpoint.alias)
            await self.put(replace(checkpoint, digest=alias, covered=0, replacement=(leads,), run=[], alias=""))
        try:
            body = encode(checkpoint)
        except (TypeError, ValueError, RecursionError) as error:
            _log.warning("a checkpoint can't be encoded (%s) and is not stored", type(error).__name__)
            return False
        if len(body) > self._limits.max_bytes:
            _log.warning(
                "a checkpoint of %d bytes is larger than SPILLWAY_STORE_BYTES allows, and is not stored", len(body)
            )
            return False
        if self._shelter is not None:
            await self._shelter.drop(checkpoint.scope, checkpoint.digest)
        if await self._run(partial(self._driver.put, checkpoint, body), False, write=True) is False:
            if self._shelter is None:
                largest = min(self._limits.max_bytes, SHELTER_BYTES)
                self._shelter = SqliteDriver(None, replace(self._limits, max_bytes=largest))
            await self._shelter.put(checkpoint, body)
        return True

    async def drop(self, scope: str, digest: bytes) -> bool:
        """Delete it, if it is there; False: the database does not take that now."""
        if self._shelter is not None:
            await self._shelter.drop(scope, digest)
        return await self._run(partial(self._driver.drop, scope, digest), False, write=True) is None

    async def document(self, owner: str, *names: str) -> dict[str, Any] | None:
        """Return what `owner` stored under the first of these names that has a document; None: none has, or it is out of reach.

        It is stored as a checkpoint that covers nothing; no history leads to it.
        """
        places = [_place(owner, name) for name in names]
        found = await self.find(places[0][0], [digest for _, digest in places]) if places else None
        return None if found is None else found.replacement[-1]

    async def put_document(self, owner: str, name: str, document: dict[str, Any]) -> bool:
        """Store a document, in place of what had that name. False: the store never takes it, and it is left out."""
        scope, digest = _place(owner, name)
        fields: dict[str, Any] = {"covered": 0, "tokens_before": 0, "tokens_after": 0, "kind": "document"}
        pair, created = ({"name": name}, document), self._limits.clock()
        return await self.put(Checkpoint(scope=scope, digest=digest, replacement=pair, created=created, **fields))

    async def drop_document(self, owner: str, name: str) -> bool:
        """Delete a document, if it is there; False: the database does not take that now."""
        return await self.drop(*_place(owner, name))

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, such as learned weights, after writing `new`; None: there is none, or it is out of reach.

        With `once`, `new` is written only where there is none yet, so that replicas share a secret, which never expires,
        nor is purged. Those keys are apart from the others.
        """
        return await self._run(partial(self._driver.value, key, new, once=once), None, write=new is not None)

    @asynccontextmanager
    async def claim(self, key: str, seconds: float) -> AsyncIterator[None]:
        """Be the only one within who works at `key`, here and in all replicas with the same Redis.

        Waits at most so many seconds for another, then goes on all the same. Within this process that holds without
        the database too.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with AsyncExitStack() as held:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await held.enter_async_context(lock)
                    lease = partial(self._driver.lease, key)
                    while not await self._run(partial(lease, LEASE), True, write=True):  # noqa: ASYNC110 - another process's
                        await asyncio.sleep(POLL)
                    held.push_async_callback(self._run, partial(lease, 0.0), True, write=True)
            yield

    async def export(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""
        bodies = await self._run(self._driver.export, (), seconds=BULK_TIMEOUT)
        return sorted(filter(None, map(decode, bodies)), key=lambda checkpoint: checkpoint.created)

    async def purge(self, *, older_than: float | None = None) -> int:
        """Delete checkpoints made before `older_than` (seconds since the epoch), or all; return how many."""
        if self._shelter is not None:
            await self._shelter.purge(older_than)
        return await self._run(partial(self._driver.purge, older_than), 0, seconds=BULK_TIMEOUT, write=True)

    async def close(self) -> None:
        """Release files and connections, whatever state the database is in."""
        with suppress(Exception):
            async with asyncio.timeout(BULK_TIMEOUT):
                for driver in filter(None, (self._shelter, self._driver)):
                    await driver.close()

    async def _run(
        self, operation: Callable[[], Awaitable[T]], default: D, *, seconds: float = 0.0, write: bool = False
    ) -> T | D:
        """Run an operation within so many seconds; return `default` when it is not admitted, or fails."""
        breakers = (self._reads, self._writes) if write else (self._reads,)
        if not all(breaker.admits(self._now()) for breaker in breakers):
            return default
        try:
            async with asyncio.timeout(seconds or self._limits.timeout):
                result = await operation()
        except Exception as error:  # noqa: BLE001 - whatever a client library raises, no request fails of it
            self._note(breakers[-1], breakers[-1].trouble % _reason(error))
            return default
        for breaker in breakers:
            self._note(breaker, "")
        return result

    def _note(self, breaker: Breaker, problem: str) -> None:
        """Note how an operation ended, and log what is news."""
        if problem and not breaker.problem:
            _log.warning("store %s %s", self._driver.name, problem)
        elif breaker.problem and not problem:
            _log.info("store %s works again", self._driver.name)
        breaker.problem, breaker.retry_at = problem, self._now() + PAUSE


def open_store(url: str, limits: StoreLimits) -> Store:
    """Open the store at `url`: `sqlite`, `sqlite:///PATH` (four slashes: absolute), `memory://`, `redis://…` or `rediss://…`.

    Blocks while a file is opened: call it before the event loop serves.

    Raises:
        SettingError: the scheme is unknown, the file can't be written, the address is malformed, or the
            client library is missing.
    """
    scheme = url.split("://", 1)[0]
    driver: Driver
    try:
        if url == "memory://" or scheme == "sqlite":
            driver = open_sqlite(url, limits)
        elif scheme in ("redis", "rediss"):
            from proxy.store.redis import RedisDriver  # noqa: PLC0415 - an extra

            driver = RedisDriver(url, limits)
        else:
            raise refusal(
                url, "no such kind of store; allowed are sqlite, sqlite:///PATH, memory://, redis://HOST, rediss://HOST"
            )
    except ModuleNotFoundError:
        raise refusal(url, "the redis client is not installed; pip install 'spillway-proxy[redis]'") from None
    except ValueError as error:
        raise refusal(url, error) from None
    return Store(driver, limits)


def _reason(error: Exception) -> str:
    """Describe an error in a word or two that never quote what was stored."""
    return getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__


def _place(owner: str, name: str) -> tuple[str, bytes]:
    """Return the scope and the digest under which a document is stored."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    return DOCUMENT + owner, digest
