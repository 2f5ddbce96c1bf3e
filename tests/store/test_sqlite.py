"""The SQLite store as a store: index, thread, queue, limits. Its file is in test_sqlite_file.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.history.checkpoint import StoreStats
from proxy.store.sqlite import SqliteStore
from proxy.store.sqlite_thread import QUEUE_DEPTH
from tests.fakes.waiting import await_until
from tests.store.support import HandClock, checkpoint, digest, eventually, finds, open_with

pytestmark = pytest.mark.anyio

Open = Callable[..., SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spillway.sqlite3"


@pytest.fixture
async def opened(path: Path, clock: HandClock) -> AsyncIterator[Open]:
    stores: list[SqliteStore] = []

    def opener(**limits: Any) -> SqliteStore:
        store = open_with(f"sqlite:///{path}", clock, **limits)
        assert isinstance(store, SqliteStore)
        stores.append(store)
        return store

    yield opener
    for store in stores:
        await store.close()


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


@contextlib.contextmanager
def stuck(store: SqliteStore) -> Iterator[None]:
    """The thread hangs, as it does when the disk does."""
    entered, gate = threading.Event(), threading.Event()

    def hang(_: sqlite3.Connection) -> None:
        entered.set()
        gate.wait(30)

    store._thread.post(hang, write=False)
    entered.wait(10)
    try:
        yield
    finally:
        gate.set()


async def on_thread(store: SqliteStore, statement: Callable[[sqlite3.Connection], Any]) -> None:
    assert await store._thread.ask(statement) is not None


# The index in memory


async def test_a_miss_does_not_ask_the_thread(opened: Open) -> None:
    store = opened()
    await store.put(checkpoint(scope="another"))
    await finds(store, 1)
    with stuck(store):
        started = time.monotonic()
        for _ in range(1000):
            assert await finds(store, 1, 2, 3) is None
        assert time.monotonic() - started < 3.0
    assert store.healthy


async def test_the_index_is_read_again_after_a_restart(opened: Open) -> None:
    store = opened()
    await store.put(checkpoint(1))
    await store.close()
    store = opened()
    with stuck(store):
        assert "scope" in store._ledger
    assert await finds(store, 1) == 1


@pytest.mark.parametrize(
    "done",
    [
        pytest.param("DELETE FROM checkpoints WHERE digest = ?", id="deleted"),
        pytest.param("UPDATE checkpoints SET body = X'00' WHERE digest = ?", id="unreadable"),
    ],
)
async def test_what_another_process_took_away_falls_back_to_a_shorter_prefix(
    opened: Open, path: Path, done: str
) -> None:
    store = opened()
    for number in (1, 2):
        await store.put(checkpoint(number))
    await store.stats()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(done, (digest(2),))
    assert await finds(store, 2, 1) == 1
    assert store.healthy


async def test_what_another_process_writes_is_seen_after_a_look(opened: Open) -> None:
    one, two = opened(), opened()
    assert await finds(two, 1) is None
    await one.put(checkpoint(1))
    await one.stats()

    async def look() -> int | None:
        two._looked = float("-inf")  # the time between two looks has passed
        return await finds(two, 1)

    await eventually(look, lambda found: found == 1)


async def test_a_put_under_way_survives_a_reload(opened: Open) -> None:
    store = opened()
    with stuck(store):
        await store.put(checkpoint(1))
        store._stale = True
        assert await finds(store, 9) is None  # this queues the reload
        await store.put(checkpoint(2))
    assert (await store.stats()).checkpoints == 2
    await asyncio.sleep(0)
    assert await finds(store, 2) == 2
    assert await finds(store, 1) == 1


# Expiry and size on disk


async def test_expired_checkpoints_leave_the_disk_without_a_new_put(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    for number in range(5):
        await store.put(checkpoint(number))
    await store.close()
    clock.advance(1000)
    store = opened(ttl=100.0)
    await finds(store, 1)
    await store.stats()
    assert await store._thread.ask(lambda db: db.execute("SELECT count(*) FROM checkpoints").fetchall()) == [
        (0,)
    ]


async def test_the_cap_counts_what_was_there_before_a_restart(opened: Open, clock: HandClock) -> None:
    store = opened(max_bytes=5000)
    for number in (1, 2, 3):
        await store.put(checkpoint(number, text="x" * 1200))
        clock.advance(1)
    await finds(store, 1)
    await store.close()
    store = opened(max_bytes=5000)
    await store.put(checkpoint(4, text="x" * 2000))
    assert [await finds(store, number) for number in (1, 2, 3, 4)] == [1, None, None, 4]
    assert (await store.stats()).checkpoints == 2


async def test_what_is_purged_is_in_no_file_any_more(opened: Open, path: Path) -> None:
    store = opened()
    for number in range(50):
        await store.put(checkpoint(number, text="MARKER" * 500))
    await store.stats()
    assert b"MARKER" in on_disk(path)
    assert await store.purge() == 50
    assert b"MARKER" not in on_disk(path)
    assert len(on_disk(path)) < 100_000  # the shared memory file alone has 32 KiB


# Trouble


async def test_a_stuck_disk_costs_the_timeout_and_then_nothing(opened: Open) -> None:
    store = opened(timeout=1.0)
    await store.put(checkpoint(1))
    await store.stats()
    with stuck(store):
        started = time.monotonic()
        answers = await asyncio.gather(*(finds(store, 1) for _ in range(100)))
        assert set(answers) == {None}
        assert time.monotonic() - started < 15.0  # not a hundred times the timeout
        assert not store.healthy
        started = time.monotonic()
        for number in range(20):
            await store.put(checkpoint(100 + number))
            assert await finds(store, 1) is None
        assert time.monotonic() - started < 20 * 0.5
    await eventually(lambda: finds(store, 1), lambda found: found == 1)
    assert store.healthy


async def test_what_a_full_queue_does_not_take_is_written_later(opened: Open) -> None:
    store = opened()
    with stuck(store):
        started = time.monotonic()
        for number in range(QUEUE_DEPTH + 100):
            await store.put(checkpoint(number))
        assert time.monotonic() - started < 5.0
        assert not store.healthy
        assert await finds(store, QUEUE_DEPTH + 50) == QUEUE_DEPTH + 50
    await eventually(store.stats, lambda stats: stats.checkpoints == QUEUE_DEPTH)
    store._retry()
    await eventually(store.stats, lambda stats: stats.checkpoints == QUEUE_DEPTH + 100)


async def test_more_than_the_queue_holds_may_wait_for_an_answer(opened: Open) -> None:
    store = opened(timeout=60.0)
    await store.put(checkpoint(1))
    await store.stats()  # it is written, then
    with stuck(store):
        asking = [asyncio.ensure_future(finds(store, 1)) for _ in range(2 * QUEUE_DEPTH)]
        await asyncio.sleep(0)
    assert set(await asyncio.gather(*asking)) == {1}
    assert store.healthy


async def test_a_full_disk_takes_no_writes_but_answers_reads(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spillway.store")
    store = opened()
    await store.put(checkpoint(1))
    await on_thread(store, lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
    await store.put(checkpoint(2, text="x" * 100_000))
    await store.stats()
    await await_until(lambda: not store.healthy)
    assert await finds(store, 2, 1) == 2, "what it does not take is kept in memory"
    assert await finds(store, 1) == 1
    await on_thread(store, lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
    await eventually(lambda: store.put(checkpoint(3)), lambda _: store.healthy)
    assert await finds(store, 3) == 3
    assert caplog.messages == [
        "store sqlite takes no writes (database or disk is full): what is new is kept in memory",
        "store sqlite takes writes again",
    ]


async def test_another_process_that_holds_the_lock_delays_nobody(opened: Open, path: Path) -> None:
    store = opened(timeout=0.2)
    await store.put(checkpoint(1))
    await store.stats()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        await store.put(checkpoint(2))
        await await_until(lambda: not store.healthy)
        assert await finds(store, 1) in {1, None}
        db.execute("ROLLBACK")
    await eventually(lambda: store.put(checkpoint(3)), lambda _: store.healthy)
    await eventually(lambda: finds(store, 3), lambda found: found == 3)


async def test_many_writes_wait_for_a_lock_no_longer_than_one(opened: Open, path: Path) -> None:
    store = opened(timeout=0.5)
    await store.put(checkpoint(1))
    await store.stats()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        for number in range(300):  # each on its own would wait for a tenth of a second
            await store.put(checkpoint(100 + number))
        await await_until(lambda: not store.healthy)
        started = time.monotonic()
        await await_until(lambda: not store._pending)
        assert time.monotonic() - started < 5.0
        assert await finds(store, 1) == 1
        assert [await finds(store, 100 + number) for number in range(300)] == list(range(100, 400))
        db.execute("ROLLBACK")
    await eventually(store.check, lambda state: state == "ok")
    await eventually(store.stats, lambda stats: stats.checkpoints == 301)


async def test_a_file_that_is_locked_at_the_start_is_tried_again(opened: Open, path: Path) -> None:
    store = opened()
    await store.put(checkpoint(1))
    await store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("DELETE FROM state")
        store = opened(timeout=0.2)
        assert not store.healthy
        assert await finds(store, 1) is None
        assert await store.stats() == StoreStats(0, 0, None)
    await eventually(lambda: finds(store, 1), lambda found: found == 1)
    assert store.healthy


async def test_a_closed_store_answers_as_if_empty(opened: Open) -> None:
    store = opened()
    await store.put(checkpoint(1))
    await store.close()
    await store.put(checkpoint(2))
    assert await finds(store, 1) is None
    assert await store.get_state("key") is None
    assert await store.export() == []


async def test_a_cancelled_find_does_no_harm(opened: Open) -> None:
    store = opened()
    await store.put(checkpoint(1))
    await store.stats()
    with stuck(store):
        task = asyncio.ensure_future(finds(store, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await finds(store, 1) == 1
    assert store.healthy
