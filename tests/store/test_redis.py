"""The Redis store when the server dies, hangs, is full, forgets, or is shared."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.history.checkpoint import CheckpointStore, StoreStats
from proxy.store.redis_wire import index_name, value_name
from tests.store.support import (
    HandClock,
    RedisServer,
    checkpoint,
    digest,
    eventually,
    finds,
    need_redis,
    open_with,
)

pytestmark = pytest.mark.anyio

Open = Callable[..., CheckpointStore]
TIMEOUT = 0.25
SLACK = 3.0
"""Seconds a busy test machine may add; a hundred operations one after the other would take far longer."""


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to do harm to; not started yet."""
    need_redis()
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
async def opened(clock: HandClock) -> AsyncIterator[Open]:
    stores: list[CheckpointStore] = []

    def opener(server: RedisServer, **limits: Any) -> CheckpointStore:
        stores.append(open_with(server.url, clock, **limits))
        return stores[-1]

    yield opener
    for store in stores:
        await store.close()


@pytest.fixture
def shared(redis_server: RedisServer) -> RedisServer:
    with redis_server.client() as client:
        client.flushall()
    return redis_server


async def stored(store: CheckpointStore, number: int) -> None:
    """Put it until the server has it."""

    async def attempt() -> int | None:
        await store.put(checkpoint(number))
        return await finds(store, number)

    await eventually(attempt, lambda found: found == number and store.healthy)


# A dead or slow server


async def test_killed_and_started_again(
    doomed: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spillway.store")
    doomed.start()
    store = opened(doomed, timeout=TIMEOUT)
    await stored(store, 1)
    doomed.kill()
    started = time.monotonic()
    assert await asyncio.gather(*(finds(store, 1) for _ in range(100))) == [None] * 100
    assert time.monotonic() - started < TIMEOUT + SLACK
    assert not store.healthy
    await store.put(checkpoint(2))
    assert await store.get_state("key") is None
    await store.put_state("key", b"value")
    assert await store.stats() == StoreStats(0, 0, None)
    assert await store.export() == []
    assert await store.purge() == 0
    doomed.start()
    await eventually(lambda: finds(store, 1), lambda _: store.healthy)
    await stored(store, 3)
    said = [message.split(" (")[0] for message in caplog.messages]
    assert said == ["store redis is unavailable", "store redis is available again"] * (len(said) // 2)


async def test_a_server_that_hangs_costs_the_timeout_once(doomed: RedisServer, opened: Open) -> None:
    doomed.start()
    store = opened(doomed, timeout=TIMEOUT)
    await stored(store, 1)
    doomed.send(signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert await asyncio.gather(*(finds(store, 1) for _ in range(100))) == [None] * 100
        assert TIMEOUT * 0.9 < time.monotonic() - started < TIMEOUT + SLACK
        started = time.monotonic()
        for number in range(20):
            assert await finds(store, 1) is None
            await store.put(checkpoint(number + 100))
        assert time.monotonic() - started < 20 * TIMEOUT
        assert not store.healthy
    finally:
        doomed.send(signal.SIGCONT)
    await eventually(lambda: finds(store, 1), lambda found: found == 1)


async def test_a_server_that_is_not_there_yet(doomed: RedisServer, opened: Open) -> None:
    store = opened(doomed, timeout=TIMEOUT)
    assert await finds(store, 1) is None
    assert not store.healthy
    doomed.start()
    await stored(store, 1)
    assert store.healthy


async def test_a_dropped_connection_is_not_worth_a_word(
    shared: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(shared)
    await store.put(checkpoint(1))
    with shared.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert await finds(store, 1) == 1
    assert store.healthy
    assert caplog.messages == []


async def test_claims_hold_within_the_process_while_the_server_is_dead(
    doomed: RedisServer, opened: Open
) -> None:
    doomed.start()
    store = opened(doomed, timeout=TIMEOUT)
    assert await store.claim("before", 60)
    doomed.kill()
    taken = await asyncio.gather(*(store.claim("key", 60) for _ in range(20)))
    assert taken.count(True) == 1
    assert not await store.claim("before", 60)
    await asyncio.wait_for(store.wait("free", 60), 10)
    await store.release("key")
    await store.release("before")
    assert await store.claim("key", 60)
    assert await store.claim("before", 60)


async def test_a_full_server_takes_no_writes_but_answers_reads(doomed: RedisServer, opened: Open) -> None:
    doomed.start()
    store = opened(doomed)
    await store.put(checkpoint(1))
    with doomed.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "100kb")
        await store.put(checkpoint(2, text="SECRET" * 100))
        assert not store.healthy
        assert await finds(store, 2, 1) == 2, "what it does not take is kept in memory"
        assert await finds(store, 1) == 1
        client.config_set("maxmemory", "0")
    await eventually(lambda: store.put(checkpoint(3)), lambda _: store.healthy)
    assert await finds(store, 3) == 3


async def test_a_refused_write_is_logged_without_what_was_written(
    doomed: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    doomed.start()
    store = opened(doomed)
    with doomed.client() as client:
        client.config_set("maxmemory", "100kb")
    await store.put(checkpoint(1, text="SECRET" * 100, scope="SECRET"))
    assert caplog.messages == [
        "store redis takes no writes (OutOfMemoryError): what is new is kept in memory"
    ]


async def test_a_wrong_password_is_logged_without_it(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    need_redis()
    server = RedisServer(tmp_path, "--requirepass", "right")
    server.start()
    store = open_with(f"redis://:SECRET@127.0.0.1:{server.port}/0", clock)
    assert await finds(store, 1) is None
    assert not store.healthy
    await store.close()
    store = open_with(f"redis://:right@127.0.0.1:{server.port}/0?decode_responses=True", clock)
    await store.put(checkpoint(1))
    assert await finds(store, 1) == 1
    await store.close()
    server.kill()
    assert "SECRET" not in caplog.text


async def test_a_cancelled_operation_leaves_the_connections_usable(doomed: RedisServer, opened: Open) -> None:
    doomed.start()
    store = opened(doomed)
    await store.put(checkpoint(1))
    doomed.send(signal.SIGSTOP)
    finding = [asyncio.ensure_future(finds(store, 1)) for _ in range(5)]
    claiming = asyncio.ensure_future(store.claim("key", 60))
    await asyncio.sleep(0.05)
    for task in (*finding, claiming):
        task.cancel()
    await asyncio.gather(*finding, claiming, return_exceptions=True)
    doomed.send(signal.SIGCONT)
    for _ in range(10):
        assert await finds(store, 1) == 1
    assert store.healthy


# What a shared server does


async def test_an_evicted_checkpoint_falls_back_to_a_shorter_prefix(
    shared: RedisServer, opened: Open
) -> None:
    store = opened(shared)
    for number in (1, 2, 3):
        await store.put(checkpoint(number))
    index = index_name("scope")
    with shared.client() as client:
        client.delete(value_name(index, digest(3)))
        client.hset(value_name(index, digest(2)), "body", "garbage")
        assert await finds(store, 3, 2, 1) == 1
        assert set(client.zrange(index, 0, -1)) == {digest(1), digest(2)}
    assert store.skipped == 1
    assert (await store.stats()).checkpoints == 2
    assert store.healthy


async def test_everything_expires_by_itself(shared: RedisServer, opened: Open) -> None:
    store = opened(shared, ttl=1000.0)
    await store.put(checkpoint(1))
    await finds(store, 1)
    await store.put_state("key", b"value")
    await store.claim("key", 500)
    with shared.client() as client:
        names = list(client.scan_iter("*"))
        assert len(names) == 4
        for name in names:
            assert name.startswith(b"spillway:")
            assert 0 < client.pttl(name) <= 1_000_000


async def test_a_use_is_good_for_another_ttl(shared: RedisServer, opened: Open) -> None:
    store = opened(shared, ttl=1000.0)
    await store.put(checkpoint(1))
    name = value_name(index_name("scope"), digest(1))
    with shared.client() as client:
        client.pexpire(name, 5000)
        await finds(store, 1)
        assert client.pttl(name) > 900_000


async def test_what_expired_leaves_the_index_with_the_next_put(
    shared: RedisServer, opened: Open, clock: HandClock
) -> None:
    store = opened(shared, ttl=1000.0)
    await store.put(checkpoint(1))
    shared.age(2000)
    await store.put(checkpoint(2))
    with shared.client() as client:
        assert client.zrange(index_name("scope"), 0, -1) == [digest(2)]


async def test_purge_finds_what_no_index_names_any_more(shared: RedisServer, opened: Open) -> None:
    store = opened(shared)
    await store.put(checkpoint(1))
    with shared.client() as client:
        client.set("another program's", "data")
        client.delete(index_name("scope"))
        assert await store.purge() == 1
        assert list(client.scan_iter("*")) == [b"another program's"]


async def test_a_claim_is_shared_by_replicas(shared: RedisServer, opened: Open) -> None:
    one, two = opened(shared), opened(shared)
    taken = await asyncio.gather(*(store.claim("key", 60) for store in (one, two) * 10))
    assert taken.count(True) == 1
    owner, other = (one, two) if taken.index(True) % 2 == 0 else (two, one)
    await other.release("key")
    assert not await other.claim("key", 60)
    waiting = asyncio.ensure_future(other.wait("key", 60))
    await owner.release("key")
    await asyncio.wait_for(waiting, 10)
    assert await other.claim("key", 60)


async def test_a_late_release_does_not_free_the_next_owner(
    shared: RedisServer, opened: Open, clock: HandClock
) -> None:
    one, two = opened(shared), opened(shared)
    assert await one.claim("key", 0.02)
    await two.wait("key", 10)
    assert await two.claim("key", 60)
    await one.release("key")
    clock.advance(1)
    assert not await one.claim("key", 60)
