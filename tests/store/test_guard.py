"""A driver in trouble: when it is left alone, for how long, and what the log says of it."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from typing_extensions import override

from proxy.core.history.checkpoint import Checkpoint
from proxy.store import Store
from proxy.store.driver import Found, StoreLimits, decode, encode
from proxy.store.sqlite import SqliteDriver
from tests.store.support import DAY, HandClock, checkpoint, finds

pytestmark = pytest.mark.anyio


class Troubled(SqliteDriver):
    """Raises what the test sets, for reads and for writes."""

    name = "test"
    reads: Exception | None = None
    writes: Exception | None = None
    tries = 0

    @override
    async def find(self, scope: str, digests: Sequence[bytes]) -> Found:
        self.tries += 1
        if self.reads is not None:
            raise self.reads
        return await super().find(scope, digests)

    @override
    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        if self.writes is not None:
            raise self.writes
        await super().put(checkpoint, body)


@pytest.fixture
def limits(clock: HandClock, caplog: pytest.LogCaptureFixture) -> StoreLimits:
    caplog.set_level(logging.INFO, logger="spillway.store")
    return StoreLimits(clock=clock, ttl=DAY, max_bytes=2**20, timeout=0.25)


@pytest.fixture
def driver(limits: StoreLimits) -> Troubled:
    return Troubled(None, limits)


@pytest.fixture
def store(driver: Troubled, limits: StoreLimits, clock: HandClock) -> Store:
    return Store(driver, limits, now=clock)


async def test_changes_are_logged_once(
    driver: Troubled, store: Store, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(checkpoint(1))
    for fails in (False, True, True, True, False, False, True):
        clock.advance(60)
        driver.reads = OSError() if fails else None
        assert await finds(store, 1) == (None if fails else 1)
        assert store.healthy is not fails
    assert caplog.messages == [
        "store test is unavailable (OSError): working without it",
        "store test works again",
        "store test is unavailable (OSError): working without it",
    ]


async def test_after_a_failure_it_is_tried_once_per_pause(driver: Troubled, store: Store, clock: HandClock) -> None:
    driver.reads = OSError()
    tries = []
    for _ in range(3):
        await asyncio.gather(*(finds(store, 1) for _ in range(5)))
        tries.append(driver.tries)
        clock.advance(0.5)
    assert tries == [1, 2, 3]


async def test_what_is_not_taken_is_found_in_memory(
    driver: Troubled, store: Store, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(checkpoint(1))
    driver.writes = ValueError("SECRET")
    for number in (2, 3):
        await store.put(checkpoint(number))
    assert [await finds(store, *each) for each in ([1], [2, 1], [9, 3, 1])] == [1, 2, 3]
    assert await store.check() == "takes no writes (ValueError): what is new is kept in memory"
    driver.writes = None
    clock.advance(0.5)
    await store.put(checkpoint(3, text="again"))
    assert await store.check() == "ok"
    assert sorted(each.covered for each in map(decode, await driver.export()) if each) == [1, 3]
    assert caplog.messages == [
        "store test takes no writes (ValueError): what is new is kept in memory",
        "store test works again",
    ]


async def test_rows_of_another_version_are_ignored(driver: Troubled, store: Store) -> None:
    bodies = [encode(checkpoint(2)).replace(b'"v":1', b'"v":99'), b'{"v":99,"form":"SECRET"}', b"SECRET", b'["v"]']
    for number, body in enumerate(bodies, 2):
        await driver.put(checkpoint(number), body)
    await store.put(checkpoint(1))
    assert await finds(store, 5, 4, 3, 2, 1) == 1
    assert await store.export() == [checkpoint(1)]
    assert store.healthy


async def test_claims_hold_within_the_process_while_the_database_is_out_of_reach(driver: Troubled, store: Store) -> None:
    driver.reads = OSError()
    await finds(store, 1)
    async with store.claim("key", 60):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), store.claim("key", 60):
                pytest.fail("it was held")
