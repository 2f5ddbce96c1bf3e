"""What only Redis does: it is shared, forgets, refuses, and expires by itself."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.store import LEASE, Store
from tests.store.support import HandClock, RedisServer, checkpoint, finds, need_redis, open_with, own_redis

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


async def test_a_dropped_connection_goes_unsaid(shared: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(shared)
    await store.put(checkpoint(1))
    with shared.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert await finds(store, 1) == 1
    assert store.healthy
    assert caplog.messages == []


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


async def test_what_was_evicted_or_is_unreadable_is_not_found(shared: RedisServer, opened: Open) -> None:
    store = opened(shared)
    for number in (1, 2, 3):
        await store.put(checkpoint(number))
    with shared.client() as client:
        names = {name.rsplit(b":")[-1][-1:]: name for name in client.scan_iter("spillway:cp:*")}
        client.delete(names[b"3"])
        assert await finds(store, 3, 2, 1) == 2
        client.hset(names[b"2"], "body", "garbage")
        client.set("another program's", "data")
        assert await finds(store, 3, 2, 1) == 1
        assert await finds(store, 3, 2) is None
        assert [each.covered for each in await store.export()] == [1]
        assert store.healthy
        assert await store.purge() == 2
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
            (name,) = client.scan_iter("spillway:cp:*")
            client.pexpire(name, 5000)
            await finds(store, 1)
            assert client.pttl(name) > 900_000


async def test_a_claim_whose_process_died_is_free_when_its_lease_ends(shared: RedisServer, opened: Open) -> None:
    with shared.client() as client:
        client.set("spillway:cl:key", "", px=300)
        store = opened(shared)
        async with asyncio.timeout(20), store.claim("key", 60):
            assert 0 < client.pttl("spillway:cl:key") <= 1000 * LEASE


async def test_a_claim_that_is_waited_for_no_longer_is_not_released_for_its_owner(shared: RedisServer, opened: Open) -> None:
    one, two = opened(shared), opened(shared)
    async with one.claim("key", 60):
        async with two.claim("key", 0.02):
            pass
        with shared.client() as client:
            assert client.exists("spillway:cl:key")
