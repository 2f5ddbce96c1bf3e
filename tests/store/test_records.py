"""One bad record: it is left out alone, counted, and the store works on as if it were not there."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.history.checkpoint import CheckpointStore
from proxy.store import memory, sqlite_rows
from proxy.store.codec import decode, encode
from proxy.store.redis_wire import index_name, value_name
from proxy.store.sqlite import SqliteStore
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

HALF = "half of an emoji: \ud83d"


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/spillway.sqlite3"
    server: RedisServer = request.getfixturevalue("redis_server")
    with server.client() as client:
        client.flushall()
    return server.url


@pytest.fixture
async def store(url: str, clock: HandClock) -> AsyncIterator[CheckpointStore]:
    store = open_with(url, clock)
    yield store
    await store.close()


async def is_well(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    await store.put(checkpoint(1000))
    await store.stats()
    assert await finds(store, 1000) == 1000
    assert await store.check() == "ok"
    assert store.healthy
    assert [line for line in caplog.messages if "unavailable" in line or "takes no" in line] == []


async def test_half_an_emoji_in_a_name_is_stored_like_any_other(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(checkpoint(1, scope=HALF, text=HALF))
    await store.stats()
    found = await store.find(HALF, [digest(1)])
    assert found is not None
    assert found.replacement[0]["content"] == HALF
    await store.put_state(HALF, b"value")
    assert await store.get_state(HALF) == b"value"
    assert await store.claim(HALF, 60)
    await store.renew(HALF, 60)
    assert not await store.claim(HALF, 60)
    await store.release(HALF)
    await is_well(store, caplog)


DOCUMENT = json.loads(encode(checkpoint(1)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'"text"',
        json.dumps(DOCUMENT | {"v": 2}).encode(),
        json.dumps(DOCUMENT | {"replacement": "text"}).encode(),
        json.dumps(DOCUMENT | {"replacement": ["text"]}).encode(),
        json.dumps(DOCUMENT | {"covered": -1}).encode(),
        json.dumps(DOCUMENT | {"covered": 1e400}).encode(),
        json.dumps(DOCUMENT | {"created": "soon"}).encode(),
        b'{"v":' + b"[" * 100_000,
    ],
    ids=lambda body: body[:20].decode("utf-8", "replace"),
)
async def test_a_body_that_is_no_checkpoint_is_passed_over(
    body: bytes, url: str, store: CheckpointStore, clock: HandClock, caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    assert decode(body) is None
    for number in (1, 2):
        await store.put(checkpoint(number))
    await store.stats()
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            db.execute("UPDATE checkpoints SET body = ? WHERE digest = ?", (body, digest(2)))
    else:
        with request.getfixturevalue("redis_server").client() as client:
            client.hset(value_name(index_name("scope"), digest(2)), "body", body)
    assert await finds(store, 2, 1) == 1
    assert store.skipped == 1
    assert len(await store.export()) == 1
    await is_well(store, caplog)
    assert await store.purge() == 3


async def test_rows_that_nobody_here_wrote_are_passed_over(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "spillway.sqlite3"
    store = open_with(f"sqlite:///{path}", clock)
    await store.put(checkpoint(1))
    await store.close()
    insert = "INSERT INTO checkpoints (scope, digest, size, used, created, body) VALUES (?, ?, ?, ?, ?, ?)"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(insert, ("scope", digest(2), "large", 1.0, 1.0, b"{}"))
        db.execute(insert, ("scope", digest(3), 10, b"now", 1.0, b"{}"))
        db.execute(insert, ("scope", "digest", 10, 1.7e9, 1.0, b"{}"))
        db.execute(
            insert.replace("(?,", "(CAST(? AS TEXT),", 1), (b"\xff\xfe", digest(4), 10, 1.7e9, 1.0, b"{}")
        )
    store = open_with(f"sqlite:///{path}", clock)
    assert await finds(store, 3, 2, 1) == 1
    await is_well(store, caplog)
    await store.close()


async def test_a_key_of_another_kind_is_passed_over(
    redis_server: RedisServer, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.set(index_name("taken"), "by another program")
        client.set("spillway:cp:no such form", "nor this")
        client.hset("spillway:st:taken", "a", "b")
    store = open_with(redis_server.url, clock)
    await store.put(checkpoint(1, scope="taken"))
    assert await store.find("taken", [digest(1)]) is None
    assert await store.get_state("taken") is None
    assert store.skipped == 3
    assert (await store.stats()).checkpoints == 0
    await is_well(store, caplog)
    assert await store.purge() >= 1
    await store.close()


async def test_a_record_that_redis_does_not_take_is_left_out(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    need_redis()
    server = RedisServer(tmp_path, "--proto-max-bulk-len", "1mb")
    server.start()
    store = open_with(server.url, clock)
    await store.put(checkpoint(1))
    await store.put(checkpoint(2, text="x" * 2_000_000))
    assert await finds(store, 2, 1) == 1
    assert store.skipped == 1
    await is_well(store, caplog)
    assert store.skipped == 1, "it is not tried again"
    await store.close()
    server.kill()


async def test_a_record_that_sqlite_cannot_hold_is_left_out(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spillway.store")
    store = open_with(f"sqlite:///{tmp_path}/spillway.sqlite3", clock)
    assert isinstance(store, SqliteStore)

    def small(db: sqlite3.Connection) -> int:
        return db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)

    assert await store._thread.ask(small)
    await store.put(checkpoint(1, text="x" * 200_000))
    await store.put_state("large", b"x" * 200_000)

    async def skipped() -> int:
        return store.skipped

    await eventually(skipped, lambda count: count == 2)
    assert await finds(store, 1) is None
    await is_well(store, caplog)
    assert store.skipped == 2, "it is not tried again"
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_learned_values_have_an_end(
    kind: str, tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_rows, memory):
        monkeypatch.setattr(module, "MOST_STATES", 10)
    store = open_with("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/spillway.sqlite3", clock)
    for number in range(25):
        await store.put_state(f"model {number}", b"value")
    kept = [await store.get_state(f"model {number}") for number in range(25)]
    assert 1 <= kept.count(b"value") <= 10
    assert kept[-1] == b"value"
    await store.close()
