"""A store that never fails a request: operations are bounded in time, and a database in trouble is left alone.

After a failure the database is left alone for a second, then tried by one operation; each further failure doubles
the pause, up to half a minute; so does one that comes soon after the database had worked again. Meanwhile reads answer
as if nothing were stored, and what is new is sheltered in memory until the database takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from proxy.core.history.checkpoint import Checkpoint
from proxy.net.tasks import spawn
from proxy.store.codec import decode, encode
from proxy.store.driver import Driver, Fault, StoredRecord, StoreLimits
from proxy.store.memory import MemoryDriver

T = TypeVar("T")

FIRST_PAUSE = 1.0
"""Seconds without a try after the first failure."""
LONGEST_PAUSE = 30.0
"""Seconds between tries while the database goes on failing."""
LATE = 1.5
"""A time-out that comes later than this share of its time is the event loop's doing."""
BULK_TIMEOUT = 30.0
"""Seconds that purging or exporting everything may take; no chat request waits for these."""
CLOSE_TIMEOUT = 5.0
"""Seconds that closing may take."""
LEASE = 4.0
"""Seconds after which a claim is free that nobody renews, because its process has died."""
RENEWAL = 1.0
"""Seconds between two renewals."""
POLL = 0.1
"""Seconds between two looks at the claim of another process."""
SHELTER_BYTES = 2**24
"""Bytes of checkpoints kept in memory while the database does not take them."""

_log = logging.getLogger("spillway.store")


class Breaker:
    """Circuit breaker. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.healthy = True
        self._pause = FIRST_PAUSE
        self._failed_at = self._retry_at = -math.inf

    def admits(self, now: float) -> bool:
        """Return whether to try; while unhealthy that is one operation per pause, and this one is it."""
        if self.healthy:
            return True
        if now < self._retry_at:
            return False
        self._retry_at = now + self._pause
        return True

    def failed(self, started: float, now: float) -> bool:
        """Note that an operation begun at `started` failed; True when that is news."""
        if not self.healthy and started < self._failed_at:
            return False  # one of many that were under way when the first one failed
        news, again = self.healthy, not self.healthy or now - self._failed_at < LONGEST_PAUSE
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        self.healthy, self._failed_at, self._retry_at = False, now, now + self._pause
        return news

    def worked(self, started: float) -> bool:
        """Note that an operation begun at `started` worked; True when that is news."""
        news = not self.healthy and started >= self._failed_at
        self.healthy = self.healthy or news
        return news


class GuardedStore:
    """See `Store`: over any driver.

    There are two breakers, because a database that is full or read-only still answers reads, and answering those is
    what keeps conversations short.
    """

    def __init__(self, driver: Driver, limits: StoreLimits, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives monotonic seconds."""
        self._driver = driver
        self._limits = limits
        self._now = now
        self._reach, self._writes = Breaker(), Breaker()
        self._problem = ""
        self._shelter = MemoryDriver(replace(limits, max_bytes=min(limits.max_bytes, SHELTER_BYTES)))
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        self.skipped = 0

    @property
    def healthy(self) -> bool:
        """See `Store.healthy`."""
        return self._reach.healthy and self._writes.healthy

    async def check(self) -> str:
        """See `Store.check`. Writes what is sheltered, or a value: only that shows whether the database takes any."""
        if not await self._write_sheltered():
            await self._run(partial(self._driver.value, "checked", b""), write=True)
        return "ok" if self.healthy else self._problem

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Store.find`."""
        scope = _encodable(scope)
        await self._write_sheltered()
        sheltered = await self._shelter.find(scope, digests)
        if sheltered is None:
            return await self._find(scope, digests)
        longer = digests[: digests.index(sheltered[0])]
        return await self._find(scope, longer) or decode(sheltered[1], scope, sheltered[0])

    async def put(self, checkpoint: Checkpoint) -> bool:
        """See `Store.put`."""
        checkpoint = replace(checkpoint, scope=_encodable(checkpoint.scope))
        try:
            body = encode(checkpoint)
        except (TypeError, ValueError, RecursionError) as error:
            _log.warning("a checkpoint can't be encoded (%s) and is not stored", type(error).__name__)
            return False
        if len(body) > self._limits.max_bytes:
            _log.warning("a checkpoint of %d bytes is above the size cap and is not stored", len(body))
            return False
        await self._write(StoredRecord(checkpoint.scope, checkpoint.digest, checkpoint.created, body))
        return True

    async def drop(self, scope: str, digest: bytes) -> bool:
        """See `Store.drop`."""
        scope = _encodable(scope)
        await self._shelter.drop(scope, digest)
        return await self._run(partial(self._driver.drop, scope, digest), write=True) is None

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Store.value`."""
        key = _encodable(key)
        if new is None or once:  # one that is stored can be read though the database takes no writes
            known = await self._run(partial(self._driver.value, key, once=once))
            if new is None or isinstance(known, bytes):
                return known if isinstance(known, bytes) else None
        written = await self._run(partial(self._driver.value, key, new, once=once), write=True)
        return written if isinstance(written, bytes) else None

    @asynccontextmanager
    async def claim(self, key: str, seconds: float) -> AsyncIterator[None]:
        """See `Store.claim`. Among the tasks of this process first: that holds without the database too."""
        key, until = _encodable(key), self._now() + seconds
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with contextlib.AsyncExitStack() as held:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await held.enter_async_context(lock)
                await held.enter_async_context(self._lease(key, until))
            yield

    async def export(self) -> list[Checkpoint]:
        """See `Store.export`."""
        bodies = await self._run(self._driver.export, seconds=BULK_TIMEOUT)
        found = map(decode, bodies if isinstance(bodies, list) else [])
        return sorted((item for item in found if item is not None), key=lambda item: item.created)

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `Store.purge`."""
        await self._shelter.purge(older_than)
        count = await self._run(partial(self._driver.purge, older_than), seconds=BULK_TIMEOUT, write=True)
        return count if isinstance(count, int) else 0

    async def close(self) -> None:
        """See `Store.close`. Whatever state the database is in, files and connections are ours to close."""
        while await self._write_sheltered():
            pass
        self._closed = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._driver.close()

    async def _find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        while digests:
            found = await self._run(partial(self._driver.find, scope, digests))
            if not isinstance(found, tuple):
                return None
            digest, body = found
            if (checkpoint := decode(body, scope, digest)) is not None:
                return checkpoint
            self.skipped += 1
            digests = digests[digests.index(digest) + 1 :]
        return None

    async def _write(self, record: StoredRecord) -> bool:
        """Write a record, or shelter it (False); one that is itself at fault is stored nowhere."""
        fault = await self._run(partial(self._driver.put, record), write=True)
        if fault is None or fault is Fault.RECORD:
            await self._shelter.drop(record.scope, record.digest)
            return True
        await self._shelter.put(record)
        return False

    async def _write_sheltered(self) -> bool:
        """Write the largest sheltered record, which shows best whether a disk is full; False: there is none, or in vain."""
        record = max(self._shelter.records, key=lambda record: len(record.body), default=None)
        return record is not None and await self._write(record)

    @asynccontextmanager
    async def _lease(self, key: str, until: float) -> AsyncIterator[None]:
        """Hold a key among the processes that share the database; without it where that can't be told."""
        lease = partial(self._driver.lease, key, secrets.token_hex(16))
        while (  # noqa: ASYNC110 - the event happens in another process
            await self._run(partial(lease, LEASE), write=True) is False and self._now() < until
        ):
            await asyncio.sleep(POLL)
        renewing = spawn(self._renew(lease), name="claim")
        try:
            yield
        finally:
            renewing.cancel()
            await self._run(partial(lease, 0), write=True)

    async def _renew(self, lease: Callable[[float], Awaitable[bool]]) -> None:
        while True:
            await asyncio.sleep(RENEWAL)
            await self._run(partial(lease, LEASE), write=True)

    async def _run(
        self, operation: Callable[[], Awaitable[T]], *, seconds: float = 0.0, write: bool = False
    ) -> T | Fault:
        """Run an operation within so many seconds; a fault when it is not admitted, or fails."""
        started, seconds = self._now(), seconds or self._limits.timeout
        if self._closed or not self._reach.admits(started):
            return Fault.REACH
        if write and not self._writes.admits(started):
            return Fault.WRITES
        try:
            async with asyncio.timeout(seconds):
                result = await operation()
        except Exception as error:  # noqa: BLE001 - whatever a client library raises, no request fails of it
            late = isinstance(error, TimeoutError) and self._now() - started > LATE * seconds
            return Fault.REACH if late else self._failed(error, started, write=write)
        self._reached(started)
        if write and self._writes.worked(started):
            _log.info("store %s takes writes again", self._driver.name)
        return result

    def _failed(self, error: Exception, started: float, *, write: bool) -> Fault:
        fault, reason = self._driver.explain(error)
        if fault is Fault.RECORD:
            self.skipped += 1
            return fault
        if write and fault is Fault.WRITES:
            self._reached(started)
            breaker, problem = self._writes, f"takes no writes ({reason}): what is new is kept in memory"
        else:
            breaker, problem = self._reach, f"is unavailable ({reason}): working without it"
        self._problem = problem
        if breaker.failed(started, self._now()):
            _log.warning("store %s %s", self._driver.name, problem)
        return fault

    def _reached(self, started: float) -> None:
        if self._reach.worked(started):
            _log.info("store %s is available again", self._driver.name)


def _encodable(text: str) -> str:
    """Return a text that UTF-8 has: half of an emoji, cut by a client or model, is written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
