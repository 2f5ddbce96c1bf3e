from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.errors import SettingError
from proxy.store.admin import Action, run_admin
from tests.store.support import NOW, HandClock, RedisServer, checkpoint, open_with


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/spillway.sqlite3"
    server: RedisServer = request.getfixturevalue("redis_server")
    with server.client() as client:
        client.flushall()
    return server.url


async def filled(url: str, clock: HandClock) -> None:
    store = open_with(url, clock, ttl=100.0)
    for number in range(3):
        await store.put(checkpoint(number, created=NOW - number * 1000, text="ünï"))
    await store.close()


async def lines(
    url: str, action: Action, clock: Callable[[], float], older_than: float | None = None
) -> list[str]:
    return list(await run_admin(url, action, clock=clock, older_than=older_than))


@pytest.mark.anyio
async def test_stats(url: str, clock: HandClock) -> None:
    await filled(url, clock)
    count, size, oldest = await lines(url, "stats", clock)
    assert count == "checkpoints 3"
    assert int(size.removeprefix("bytes ")) > 300
    assert oldest == "oldest 2023-11-14T21:40:00+00:00"


@pytest.mark.anyio
async def test_export_is_json_by_line_oldest_first(url: str, clock: HandClock) -> None:
    await filled(url, clock)
    documents = [json.loads(line) for line in await lines(url, "export", clock)]
    assert [document["covered"] for document in documents] == [2, 1, 0]
    assert documents[0]["replacement"] == [{"role": "user", "content": "ünï"}]


@pytest.mark.anyio
async def test_purge_by_age_and_of_all(url: str, clock: HandClock) -> None:
    await filled(url, clock)
    assert await lines(url, "purge", clock, 1500) == ["purged 1 checkpoint"]
    assert await lines(url, "purge", clock) == ["purged 2 checkpoints"]
    assert await lines(url, "stats", clock) == ["checkpoints 0", "bytes 0", "oldest -"]


@pytest.mark.anyio
async def test_looking_deletes_nothing(url: str, clock: HandClock) -> None:
    await filled(url, clock)
    clock.advance(1_000_000)  # all of it has expired for the proxy
    assert (await lines(url, "stats", clock))[0] == "checkpoints 3"
    assert len(await lines(url, "export", clock)) == 3


@pytest.mark.anyio
async def test_a_running_proxy_notices_the_purge(url: str, clock: HandClock) -> None:
    store = open_with(url, clock)
    await store.put(checkpoint(1))
    await store.stats()
    assert await lines(url, "purge", clock) == ["purged 1 checkpoint"]
    assert await store.find("scope", [checkpoint(1).digest]) is None
    await store.put(checkpoint(1))
    assert await store.find("scope", [checkpoint(1).digest]) == checkpoint(1)
    await store.close()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("memory://", "lives in the memory of the proxy"),
        ("sqlite:///nowhere/x.sqlite3", "there is no such file yet"),
        ("redis://127.0.0.1:1/0", "the store can't be reached"),
        ("mysql://x", "no such kind of store"),
    ],
)
def test_a_store_that_is_not_there(
    address: str, reason: str, clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=reason):
        asyncio.run(run_admin(address, "stats", clock=clock))
    assert list(tmp_path.iterdir()) == []
