"""Several processes on one SQLite file, each told so: what one stores another sees at once, and claims hold for all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.history.checkpoint import CheckpointStore
from proxy.store import sqlite_rows as rows
from proxy.store.sqlite import SqliteStore
from tests.store.support import HandClock, checkpoint, digest, finds, open_with

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def pair(tmp_path: Path, clock: HandClock) -> AsyncIterator[tuple[CheckpointStore, CheckpointStore]]:
    url = f"sqlite:///{tmp_path}/spillway.sqlite3"
    one, two = (open_with(url, clock, shared=True) for _ in range(2))
    yield one, two
    await one.close()
    await two.close()


async def test_what_one_has_put_the_other_finds_at_once(
    pair: tuple[CheckpointStore, CheckpointStore],
) -> None:
    for number in range(1, 5):
        here, there = pair[number % 2], pair[1 - number % 2]
        await here.put(checkpoint(number))
        assert await here.find("scope", [digest(number)]) == checkpoint(number)  # it is written, then
        assert await there.find("scope", [digest(number)]) == checkpoint(number)
    assert await finds(pair[0], *range(1000, 3000), 4, 3) == 4  # a long history


async def test_a_thousand_who_look_at_once_are_told_and_some_may_leave(
    pair: tuple[CheckpointStore, CheckpointStore],
) -> None:
    one, two = pair
    for number in range(5):
        await one.put(checkpoint(number))
    assert await finds(one, 4) == 4
    assert isinstance(two, SqliteStore)
    held = threading.Event()
    two._thread.post(lambda _: held.wait(20))
    asking = [asyncio.ensure_future(finds(two, 99, number % 5)) for number in range(1000)]
    await asyncio.sleep(0)
    for each in asking[::100]:  # the first of all is among them
        each.cancel()
    held.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    told = [number for number in found if not isinstance(number, BaseException)]
    assert told.count(None) == 0
    assert told == [at % 5 for at in range(1000) if at % 100]
    assert two.healthy


async def test_what_one_has_dropped_the_other_does_not_find(
    pair: tuple[CheckpointStore, CheckpointStore],
) -> None:
    one, two = pair
    await one.put(checkpoint(1))
    assert await finds(one, 1) == await finds(two, 1) == 1
    await one.drop("scope", digest(1))
    assert await finds(two, 1) is None


async def test_what_has_expired_is_not_found_by_the_other_either(
    pair: tuple[CheckpointStore, CheckpointStore], clock: HandClock
) -> None:
    one, two = pair
    await one.put(checkpoint(1))
    assert await finds(one, 1) == 1
    clock.advance(86400.0 + 1)
    assert await finds(two, 1) is None


async def test_a_claim_of_one_holds_for_the_other_until_it_is_released(
    pair: tuple[CheckpointStore, CheckpointStore],
) -> None:
    one, two = pair
    taken = await asyncio.gather(*(store.claim("key", 60) for store in pair * 20))
    assert taken.count(True) == 1
    holder, other = (one, two) if taken.index(True) % 2 == 0 else (two, one)
    await other.release("key")  # it is not theirs
    assert not await other.claim("key", 60)
    waiting = asyncio.ensure_future(other.wait("key", 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    await holder.release("key")
    await asyncio.wait_for(waiting, 20)
    assert await other.claim("key", 60)


async def test_who_leaves_while_it_claims_or_releases_keeps_nothing(
    pair: tuple[CheckpointStore, CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    assert isinstance(one, SqliteStore)
    begun, claim = threading.Event(), rows.claim
    held = threading.Event()

    def slow(db: sqlite3.Connection, **values: Any) -> bool:
        begun.set()
        return held.wait(20) and claim(db, **values)

    monkeypatch.setattr(rows, "claim", slow)
    claiming = asyncio.ensure_future(one.claim("key", 60))
    await asyncio.to_thread(begun.wait, 20)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    held.set()
    assert await one.claim("key", 60)  # behind what it gives back
    held.clear()
    one._thread.post(lambda _: held.wait(20))
    releasing = asyncio.ensure_future(one.release("key"))
    await asyncio.sleep(0)
    releasing.cancel()
    await asyncio.gather(releasing, return_exceptions=True)
    held.set()
    await asyncio.wait_for(two.wait("key", 60), 20)
    assert await two.claim("key", 60)


async def test_a_claim_that_waits_for_the_file_takes_none_that_was_made_meanwhile(
    pair: tuple[CheckpointStore, CheckpointStore], clock: HandClock
) -> None:
    one, two = pair
    assert isinstance(two, SqliteStore)
    assert await two.claim("another", 60)
    held = threading.Event()
    two._thread.post(lambda _: held.wait(20))
    late = asyncio.ensure_future(two.claim("key", 60))
    await asyncio.sleep(0)
    clock.advance(1)
    assert await one.claim("key", 60)
    held.set()
    assert not await late


async def test_a_claim_whose_owner_is_gone_ends_and_one_that_is_renewed_does_not(
    pair: tuple[CheckpointStore, CheckpointStore], clock: HandClock
) -> None:
    one, two = pair
    assert await one.claim("key", 4)
    clock.advance(3)
    await one.renew("key", 4)
    clock.advance(3)
    assert not await two.claim("key", 4)
    clock.advance(3)
    assert await two.claim("key", 4)
    await one.renew("key", 60)  # too late: it is another's now
    clock.advance(5)
    assert await two.claim("key", 4)


async def test_a_claim_from_before_the_machine_was_started_anew_holds_nobody_up(
    pair: tuple[CheckpointStore, CheckpointStore], clock: HandClock
) -> None:
    one, two = pair
    assert await one.claim("key", 60)
    clock.now -= 10_000  # the seconds that the machine counts begin again
    await asyncio.wait_for(two.wait("key", 60), 20)
    assert await two.claim("key", 60)


async def test_a_claim_can_be_had_though_the_file_can_not_be_written(
    tmp_path: Path, clock: HandClock
) -> None:
    url = f"sqlite:///{tmp_path}/spillway.sqlite3"
    store = open_with(url, clock, shared=True)
    other = open_with(url, clock, shared=True)
    await store.put_state("x", b"1")
    await store.close()  # from now on it takes nothing
    assert await store.claim("key", 60)
    assert not await store.claim("key", 60)
    await store.release("key")
    assert await store.claim("key", 60)
    await other.close()
