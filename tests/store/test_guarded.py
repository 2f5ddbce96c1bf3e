"""A driver in trouble: when it is left alone, for how long, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest
from typing_extensions import override

from proxy.store.driver import Fault, StoredRecord, StoreLimits
from proxy.store.guarded import Breaker, GuardedStore
from proxy.store.memory import MemoryDriver
from tests.store.support import DAY, HandClock, checkpoint, finds

pytestmark = pytest.mark.anyio

HALF = "half of an emoji: \ud83d"


class Full(Exception):
    pass


class Troubled(MemoryDriver):
    """Raises what it is told to, for reads, for writes, or for both."""

    name = "test"

    def __init__(self, limits: StoreLimits) -> None:
        super().__init__(limits)
        self.reads: Callable[[], None] = lambda: None
        self.writes: Callable[[], None] = lambda: None

    @override
    async def find(self, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        self.reads()
        return await super().find(scope, digests)

    @override
    async def put(self, record: StoredRecord) -> None:
        self.writes()
        await super().put(record)

    @override
    def explain(self, error: Exception) -> tuple[Fault, str]:
        faults = {Full: Fault.WRITES, ValueError: Fault.RECORD}
        return faults.get(type(error), Fault.REACH), type(error).__name__


def raising(error: Exception) -> Callable[[], None]:
    def raise_() -> None:
        raise error

    return raise_


@pytest.fixture
def limits(clock: HandClock, caplog: pytest.LogCaptureFixture) -> StoreLimits:
    caplog.set_level(logging.INFO, logger="spillway.store")
    return StoreLimits(clock=clock, ttl=DAY, max_bytes=2**20, timeout=0.25)


@pytest.fixture
def driver(limits: StoreLimits) -> Troubled:
    return Troubled(limits)


@pytest.fixture
def store(driver: Troubled, limits: StoreLimits, clock: HandClock) -> GuardedStore:
    return GuardedStore(driver, limits, now=clock)


def _pauses(breaker: Breaker, times: int, *, works: bool = False) -> list[float]:
    """Seconds until it is tried again, after each failure; `works`: what is tried does, and what comes after it fails."""
    now, pauses = 0.0, []
    for _ in range(times):
        breaker.failed(now, now)
        failed = now
        while not breaker.admits(now):
            now += 0.5
        pauses.append(now - failed)
        if works:
            breaker.worked(now)
    return pauses


def test_pauses_double_up_to_half_a_minute() -> None:
    assert _pauses(Breaker(), 8) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_what_fails_again_soon_is_tried_as_seldom_as_before() -> None:
    breaker = Breaker()
    pauses = _pauses(breaker, 6, works=True)  # what is tried is small, what fails is large
    assert pauses == [1, 2, 4, 8, 16, 30]
    now = sum(pauses) + 31
    breaker.failed(now, now)
    assert breaker.admits(now + 1.0)


def test_failures_that_were_under_way_together_count_once() -> None:
    breaker = Breaker()
    assert [breaker.failed(0.0, 0.2 + number / 100) for number in range(10)] == [True] + 9 * [False]
    assert [breaker.admits(1.21) for _ in range(3)] == [True, False, False]
    assert not breaker.worked(0.1), "it began before the failure"
    assert breaker.worked(1.21)


async def test_each_change_is_logged_once(
    driver: Troubled, store: GuardedStore, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(checkpoint(1))
    for fails in (False, True, True, True, False, False, True):
        clock.advance(60)
        driver.reads = raising(OSError()) if fails else lambda: None
        assert await finds(store, 1) == (None if fails else 1)
        assert store.healthy is not fails
    driver.reads = lambda: None
    assert await finds(store, 1) is None, "it is left alone for a second"
    assert caplog.messages == [
        "store test is unavailable (OSError): working without it",
        "store test is available again",
        "store test is unavailable (OSError): working without it",
    ]


async def test_what_is_not_taken_is_found_in_memory_and_written_later(
    driver: Troubled, store: GuardedStore, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(checkpoint(1))
    driver.writes = raising(Full())
    for number in (2, 3):
        await store.put(checkpoint(number))
    assert [await finds(store, *each) for each in ([1], [2, 1], [9, 3, 1])] == [1, 2, 3]
    assert await store.check() == "takes no writes (Full): what is new is kept in memory"
    driver.writes = lambda: None
    clock.advance(1)
    await finds(store, 1)
    assert await store.check() == "ok"
    assert len(driver.records) == 3
    assert caplog.messages == [
        "store test takes no writes (Full): what is new is kept in memory",
        "store test takes writes again",
    ]


async def test_a_closing_store_writes_what_it_had_in_memory(
    driver: Troubled, store: GuardedStore, clock: HandClock
) -> None:
    driver.writes = raising(Full())
    for number in (1, 2):
        await store.put(checkpoint(number))
    driver.writes = lambda: None
    clock.advance(1)
    await store.close()
    assert len(driver.records) == 2
    assert await finds(store, 1) is None, "it is closed"


async def test_a_record_at_fault_is_left_out_alone(
    driver: Troubled, store: GuardedStore, caplog: pytest.LogCaptureFixture
) -> None:
    driver.writes = raising(ValueError())
    await store.put(checkpoint(1))
    driver.writes = lambda: None
    assert await finds(store, 1) is None
    await store.put(checkpoint(1))
    await driver.put(StoredRecord("scope", checkpoint(2).digest, 0.0, b"no checkpoint"))
    assert await finds(store, 2, 1) == 1
    assert (store.skipped, store.healthy, caplog.messages) == (2, True, [])


async def test_a_time_out_of_a_held_up_loop_is_not_held_against_the_store(
    driver: Troubled, store: GuardedStore, clock: HandClock
) -> None:
    def time_out(seconds: float) -> Callable[[], None]:
        def wait() -> None:
            clock.advance(seconds)
            raise TimeoutError

        return wait

    await store.put(checkpoint(1))
    driver.reads = time_out(3.0)
    assert await finds(store, 1) is None
    assert store.healthy
    driver.reads = time_out(0.26)
    assert await finds(store, 1) is None
    assert not store.healthy


async def test_claims_hold_within_the_process_while_the_database_is_out_of_reach(
    driver: Troubled, store: GuardedStore
) -> None:
    driver.reads = raising(OSError())
    await finds(store, 1)
    async with store.claim("key", 60):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), store.claim("key", 60):
                pytest.fail("it was held")


async def test_half_an_emoji_in_a_name_is_stored_like_any_other(store: GuardedStore) -> None:
    await store.put(checkpoint(1, scope=HALF, text=HALF))
    found = await store.find(HALF, [checkpoint(1).digest])
    assert found is not None
    assert found.replacement[0]["content"] == HALF
    await store.value(HALF, b"value")
    assert await store.value(HALF) == b"value"
    async with store.claim(HALF, 60):
        pass
    assert await store.drop(HALF, checkpoint(1).digest)
