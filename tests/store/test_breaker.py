from __future__ import annotations

import logging

import pytest

from proxy.store.breaker import Breaker, Fault, StoreGuard
from tests.store.support import HandClock

pytestmark = pytest.mark.anyio


class Full(Exception):
    pass


@pytest.fixture
def guard(clock: HandClock, caplog: pytest.LogCaptureFixture) -> StoreGuard:
    caplog.set_level(logging.INFO, logger="spillway.store")
    return StoreGuard(
        "store test",
        describe=lambda error: type(error).__name__,
        judge=lambda error: {Full: Fault.WRITES, ValueError: Fault.RECORD}.get(type(error), Fault.REACH),
        now=clock,
    )


async def _works() -> str:
    return "answer"


async def _fails() -> str:
    raise OSError


async def _refused() -> str:
    raise Full


async def _run(guard: StoreGuard, what: object = _works, *, write: bool = False) -> str:
    operation = {"works": _works, "fails": _fails, "refused": _refused}[str(what)]
    return await guard.run(operation, "nothing", seconds=0.25, write=write)


def _pauses(breaker: Breaker, times: int, *, works: bool = False) -> list[float]:
    """Seconds until it is tried again, each time after it has failed; `works`: what is tried does, and what comes after it fails."""
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


def test_a_store_that_fails_again_soon_is_tried_as_seldom_as_before() -> None:
    breaker = Breaker()
    pauses = _pauses(breaker, 6, works=True)  # what is tried is small, what fails is large
    assert pauses == [1, 2, 4, 8, 16, 30]
    now = sum(pauses) + 31
    breaker.failed(now, now)
    assert breaker.admits(now + 1.0)


def test_failures_that_were_under_way_together_count_once() -> None:
    breaker = Breaker()
    assert [breaker.failed(0.0, 0.2 + number / 100) for number in range(10)] == [True] + 9 * [False]
    assert breaker.admits(1.21)


def test_a_success_that_began_before_the_failure_says_nothing() -> None:
    breaker = Breaker()
    breaker.failed(1.0, 2.0)
    assert not breaker.worked(1.5)
    assert not breaker.admits(2.5)
    assert breaker.worked(3.0)
    assert breaker.admits(2.5)


def test_while_unhealthy_one_operation_at_a_time_tries() -> None:
    breaker = Breaker()
    breaker.failed(0.0, 0.0)
    assert [breaker.admits(1.0) for _ in range(3)] == [True, False, False]


async def test_after_a_failure_nothing_runs_until_the_pause_is_over(
    guard: StoreGuard, clock: HandClock
) -> None:
    assert await _run(guard, "works") == "answer"
    assert await _run(guard, "fails") == "nothing"
    assert not guard.healthy
    assert await _run(guard, "works") == "nothing"
    clock.advance(1.0)
    assert await _run(guard, "works") == "answer"
    assert guard.healthy


async def test_each_change_is_logged_once(
    guard: StoreGuard, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    for what in ("works", "fails", "fails", "fails", "works", "works", "fails"):
        clock.advance(60)
        await _run(guard, what)
    assert caplog.messages == [
        "store test is unavailable (OSError): working without it",
        "store test is available again",
        "store test is unavailable (OSError): working without it",
    ]


async def test_a_store_that_refuses_writes_is_still_read(
    guard: StoreGuard, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert await _run(guard, "refused", write=True) == "nothing"
    assert await _run(guard, "works") == "answer"
    assert not guard.healthy
    assert await _run(guard, "works", write=True) == "nothing"
    clock.advance(1.0)
    assert await _run(guard, "works", write=True) == "answer"
    assert caplog.messages == [
        "store test takes no writes (Full): what is new is kept in memory",
        "store test takes writes again",
    ]


async def test_what_one_record_is_at_fault_for_is_counted_and_nothing_else(
    guard: StoreGuard, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad() -> str:
        raise ValueError

    for write in (True, False):
        assert await guard.run(bad, "nothing", seconds=0.25, write=write) == "nothing"
        assert await guard.run(_works, "nothing", seconds=0.25, write=write) == "answer"
    assert (guard.skipped, guard.state, guard.writable) == (2, "ok", True)
    assert caplog.messages == []


async def test_a_refusal_of_a_read_is_a_failure(guard: StoreGuard) -> None:
    await _run(guard, "refused")
    assert await _run(guard, "works") == "nothing"


async def test_a_time_out_of_a_held_up_event_loop_is_not_held_against_the_store(
    guard: StoreGuard, clock: HandClock
) -> None:
    async def late() -> str:
        clock.advance(3.0)
        raise TimeoutError

    async def in_time() -> str:
        clock.advance(0.26)
        raise TimeoutError

    assert await guard.run(late, "nothing", seconds=0.25) == "nothing"
    assert guard.healthy
    assert await guard.run(in_time, "nothing", seconds=0.25) == "nothing"
    assert not guard.healthy


async def test_a_closed_guard_admits_nothing(guard: StoreGuard) -> None:
    guard.close()
    assert await _run(guard, "works") == "nothing"
    assert guard.healthy
