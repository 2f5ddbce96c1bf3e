"""Store: checkpoints, documents and learned values that survive a restart. It never makes a request fail.

A checkpoint replaces the beginning of a history, and is found by scope (whose it is) and digest. A document is any other JSON object,
such as a stored response; it is stored as a checkpoint that covers nothing. A value is a few bytes, such as learned weights. A driver
is the code for one database. The shelter is the memory that holds checkpoints while the database accepts none.

Operations are bounded in time. After a failed read, the database is left alone for `PAUSE` seconds, and only the shelter is read;
after a failed write, writes alone pause, and new checkpoints go into the shelter.

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
"""Seconds after a failure until the next attempt."""
BULK_TIMEOUT = 30.0
"""Seconds that purging, exporting or closing may take; no chat request waits for these."""
LEASE = 30.0
"""Seconds after which another process may take over a claim, because its owner has died or is slow."""
POLL = 0.1
"""Seconds between checks whether another process has released its claim."""
SHELTER_BYTES = 2**24
"""Most bytes of checkpoints held in memory while the database accepts none."""

_log = logging.getLogger("spillway.store")


@dataclass(slots=True)
class Breaker:
    """Circuit breaker for one kind of operation; times are monotonic seconds."""

    trouble: str
    """Text for the log, with `%s` for the reason."""
    problem: str = ""
    """Problem of the last operation; empty if it worked."""
    retry_at: float = 0.0

    def admits(self, now: float) -> bool:
        """Return whether to try an operation: always, or after a failure once per pause, which this call then uses up."""
        if self.problem:
            if now < self.retry_at:
                return False
            self.retry_at = now + PAUSE
        return True


class Store:
    """Stores checkpoints by scope and digest, and small values, with any driver.

    A lost, slow or full database raises no error. Reads and writes have separate breakers, because a database that is full or
    read-only still answers reads, and those are what keeps conversations short.
    """

    def __init__(self, driver: Driver, limits: StoreLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        """Use a driver within limits; `now` gives monotonic seconds."""
        self._driver = driver
        self._limits = limits
        self._now = now
        self._reads = Breaker("is unavailable (%s): working without it")
        self._writes = Breaker("takes no writes (%s): what is new is kept in memory")
        self._shelter: Driver | None = None
        """Checkpoints that the database did not accept; None if it has accepted all."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def healthy(self) -> bool:
        """Return whether the last read and the last write worked."""
        return not (self._reads.problem or self._writes.problem)

    @property
    def shared(self) -> bool:
        """Return whether other instances use it too."""
        return self._driver.shared

    async def check(self) -> str:
        """Try a write, and return `ok` or a short description of the problem. It is bounded in time like any operation."""
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
        """Store a checkpoint, and a pointer to it from its alias; one with the same scope and digest is replaced.

        Returns False if the checkpoint can never be stored: it is not JSON, or too large. If only the database fails, the shelter
        holds it.
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
        """Delete a checkpoint, if it is stored; returns False if the database does not accept that now."""
        if self._shelter is not None:
            await self._shelter.drop(scope, digest)
        return await self._run(partial(self._driver.drop, scope, digest), False, write=True) is None

    async def document(self, owner: str, *names: str) -> dict[str, Any] | None:
        """Return the document of `owner` under the first of these names that has one; None if none has, or the database fails.

        Documents are stored as checkpoints that cover nothing; no history leads to them.
        """
        places = [_place(owner, name) for name in names]
        found = await self.find(places[0][0], [digest for _, digest in places]) if places else None
        return None if found is None else found.replacement[-1]

    async def put_document(self, owner: str, name: str, document: dict[str, Any]) -> bool:
        """Store a document, replacing any with that name; returns False if it can never be stored."""
        scope, digest = _place(owner, name)
        fields: dict[str, Any] = {"covered": 0, "tokens_before": 0, "tokens_after": 0, "kind": "document"}
        pair, created = ({"name": name}, document), self._limits.clock()
        return await self.put(Checkpoint(scope=scope, digest=digest, replacement=pair, created=created, **fields))

    async def drop_document(self, owner: str, name: str) -> bool:
        """Delete a document, if it is stored; returns False if the database does not accept that now."""
        return await self.drop(*_place(owner, name))

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, such as learned weights, after writing `new` if given; None if there is none, or the database fails.

        With `once`, `new` is written only if the key has no value yet. Replicas share a secret in this way; it never expires and
        is not purged. Keys written with `once` are separate from the others.
        """
        return await self._run(partial(self._driver.value, key, new, once=once), None, write=new is not None)

    @asynccontextmanager
    async def claim(self, key: str, seconds: float) -> AsyncIterator[None]:
        """Work at `key` exclusively inside the context, among this process and all replicas with the same Redis.

        Waits at most `seconds` for another holder, then continues anyway. Within this process, the claim works without
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
        """Delete checkpoints made before `older_than` (seconds since the epoch), or all; return their number."""
        if self._shelter is not None:
            await self._shelter.purge(older_than)
        return await self._run(partial(self._driver.purge, older_than), 0, seconds=BULK_TIMEOUT, write=True)

    async def close(self) -> None:
        """Release files and connections, even if the database fails."""
        with suppress(Exception):
            async with asyncio.timeout(BULK_TIMEOUT):
                for driver in filter(None, (self._shelter, self._driver)):
                    await driver.close()

    async def _run(
        self, operation: Callable[[], Awaitable[T]], default: D, *, seconds: float = 0.0, write: bool = False
    ) -> T | D:
        """Run an operation within `seconds` (0: the usual limit); return `default` if a breaker does not admit it, or it fails."""
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
        """Record how an operation ended, and log a change for the worse or the better."""
        if problem and not breaker.problem:
            _log.warning("store %s %s", self._driver.name, problem)
        elif breaker.problem and not problem:
            _log.info("store %s works again", self._driver.name)
        breaker.problem, breaker.retry_at = problem, self._now() + PAUSE


def open_store(url: str, limits: StoreLimits) -> Store:
    """Open the store at `url`: `sqlite`, `sqlite:///PATH` (four slashes: absolute), `memory://`, `redis://…` or `rediss://…`.

    Opening a file blocks: call this before the event loop serves.

    Raises:
        SettingError: the scheme is unknown, the file cannot be written, the address is malformed, or the client library is missing.
    """
    # `memory://` is SQLite without a file: a driver made of dictionaries needed its own eviction, expiry and values.
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
    """Describe an error in a word or two; never by its message, which could quote stored content."""
    return getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__


def _place(owner: str, name: str) -> tuple[str, bytes]:
    """Return the scope and the digest under which a document is stored."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    return DOCUMENT + owner, digest
