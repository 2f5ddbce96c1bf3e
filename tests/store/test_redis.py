"""What only Redis does: it is shared, forgets, refuses, and expires by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.core.history.checkpoint import Store
from proxy.store.guarded import LEASE
from proxy.store.redis import record_name
from tests.store.support import (
    HandClock,
    RedisServer,
    checkpoint,
    digest,
    eventually,
    finds,
    need_redis,
    open_with,
    own_redis,
)

__all__ = ["own_redis"]

pytestmark = pytest.mark.anyio

Open = Callable[..., Store]


@pytest.fixture
async def opened(clock: HandClock) -> AsyncIterator[Open]:
    stores: list[Store] = []

    def opener(server: RedisServer, **limits: Any) -> Store:
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


async def test_a_refused_write_is_logged_without_what_was_written(
    own_redis: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(own_redis)
    with own_redis.client() as client:
        client.config_set("maxmemory", "100kb")
    await store.put(checkpoint(1, text="SECRET" * 100, scope="SECRET"))
    assert caplog.messages == ["store redis takes no writes (OutOfMemoryError): what is new is kept in memory"]


async def test_a_password_in_the_address(tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    need_redis()
    server = RedisServer(tmp_path, "--requirepass", "right")
    server.start()
    for password, number in (("SECRET", None), ("right", 1)):
        store = open_with(f"redis://:{password}@127.0.0.1:{server.port}/0?decode_responses=True", clock)
        await store.put(checkpoint(1))
        assert store.healthy is bool(number)
        await store.close()
    server.kill()
    assert "SECRET" not in caplog.text


async def test_a_record_that_redis_does_not_take_is_left_out(tmp_path: Path, clock: HandClock) -> None:
    need_redis()
    server = RedisServer(tmp_path, "--proto-max-bulk-len", "1mb")
    server.start()
    store = open_with(server.url, clock)
    await store.put(checkpoint(1))
    await store.put(checkpoint(2, text="x" * 2_000_000))
    for _ in range(2):
        assert await finds(store, 2, 1) == 1
        assert (store.skipped, store.healthy) == (1, True), "it is not tried again"
    await store.close()
    server.kill()


async def test_a_cancelled_operation_leaves_the_connections_usable(own_redis: RedisServer, opened: Open) -> None:
    store = opened(own_redis)
    await store.put(checkpoint(1))
    own_redis.send(signal.SIGSTOP)
    finding = [asyncio.ensure_future(finds(store, 1)) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in finding:
        task.cancel()
    await asyncio.gather(*finding, return_exceptions=True)
    own_redis.send(signal.SIGCONT)
    for _ in range(10):
        assert await finds(store, 1) == 1
    assert store.healthy


async def test_what_was_evicted_or_is_unreadable_falls_back_to_a_shorter_prefix(
    shared: RedisServer, opened: Open
) -> None:
    store = opened(shared)
    for number in (1, 2, 3):
        await store.put(checkpoint(number))
    with shared.client() as client:
        client.delete(record_name("scope", digest(3)))
        client.hset(record_name("scope", digest(2)), "body", "garbage")
    assert await finds(store, 3, 2, 1) == 1
    assert store.skipped == 1
    assert len(await store.export()) == 1
    assert store.healthy


async def test_a_key_of_another_kind_is_passed_over(shared: RedisServer, opened: Open) -> None:
    store = opened(shared)
    with shared.client() as client:
        client.set("another program's", "data")
        client.set(record_name("scope", digest(1)), "of another program")
        client.hset("spillway:st:taken", "a", "b")
        assert await finds(store, 1) is None
        await store.put(checkpoint(1))
        assert await store.value("taken") is None
        assert (store.skipped, store.healthy) == (2, True)
        assert await store.purge() == 1
        assert client.get("another program's") == b"data"


async def test_everything_expires_by_itself_and_a_use_prolongs_it(shared: RedisServer, opened: Open) -> None:
    store = opened(shared, ttl=1000.0)
    await store.put(checkpoint(1))
    await store.value("key", b"value")
    async with store.claim("key", 500):
        with shared.client() as client:
            names = list(client.scan_iter("*"))
            assert len(names) == 3
            for name in names:
                assert name.startswith(b"spillway:")
                assert 0 < client.pttl(name) <= 1_000_000
            name = record_name("scope", digest(1))
            client.pexpire(name, 5000)
            await finds(store, 1)
            assert client.pttl(name) > 900_000


async def test_a_claim_whose_process_died_is_free_within_seconds(shared: RedisServer, opened: Open) -> None:
    with shared.client() as client:
        client.set("spillway:cl:key", "somebody who is gone", px=300)
    store = opened(shared)
    async with asyncio.timeout(20), store.claim("key", 60):
        with shared.client() as client:
            assert 0 < client.pttl("spillway:cl:key") <= 1000 * LEASE


async def test_a_claim_that_is_waited_for_no_longer_is_not_released_for_its_owner(
    shared: RedisServer, opened: Open
) -> None:
    one, two = opened(shared), opened(shared)
    async with one.claim("key", 60):
        async with two.claim("key", 0.02):
            pass
        with shared.client() as client:
            assert client.exists("spillway:cl:key")


async def test_a_server_that_is_not_there_yet(tmp_path: Path, clock: HandClock) -> None:
    need_redis()
    server = RedisServer(tmp_path)
    store = open_with(server.url, clock, timeout=0.25)
    assert await finds(store, 1) is None
    assert not store.healthy
    server.start()
    await store.put(checkpoint(1))
    await eventually(store.check, lambda state: state == "ok")
    assert await finds(store, 1) == 1
    await store.close()
    server.kill()
