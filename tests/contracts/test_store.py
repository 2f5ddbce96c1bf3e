"""What every store does alike. A new kind of store is one line in `KINDS`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.history.checkpoint import CheckpointStore, StoreStats
from proxy.store import STORES
from proxy.store.documents import Documents
from proxy.store.opening import MOST_STATES
from tests.store.support import (
    NOW,
    HandClock,
    RedisServer,
    checkpoint,
    digest,
    finds,
    open_with,
    redis_server,
)

__all__ = ["redis_server"]

pytestmark = pytest.mark.anyio

Open = Callable[..., CheckpointStore]


def _memory(request: pytest.FixtureRequest) -> str:
    return "memory://"


def _sqlite(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{folder}/spillway.sqlite3"


def _redis(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("redis_server")
    with server.client() as client:
        client.flushall()
    clock: HandClock = request.getfixturevalue("clock")
    clock.passing.append(server.age)
    return server.url


YEAR = 365 * 86400.0
KINDS = {"memory": _memory, "sqlite": _sqlite, "redis": _redis}
LASTING = ["sqlite", "redis"]
CAPPED = ["memory", "sqlite"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    return KINDS[request.param](request)


@pytest.fixture
async def opened(request: pytest.FixtureRequest, url: str, clock: HandClock) -> AsyncIterator[Open]:
    """Opens stores on the same address, and closes them in the end."""
    stores: list[CheckpointStore] = []

    def opener(**limits: Any) -> CheckpointStore:
        stores.append(open_with(url, clock, **limits))
        return stores[-1]

    yield opener
    for store in stores:
        await store.close()


@pytest.fixture
async def store(opened: Open) -> CheckpointStore:
    return opened()


def test_every_kind_of_store_is_covered() -> None:
    assert {"redis" if scheme == "rediss" else scheme for scheme in STORES} == {*KINDS}


# Finding


async def test_an_empty_store_finds_nothing(store: CheckpointStore) -> None:
    assert await store.find("scope", [digest(1)]) is None
    assert await store.find("scope", []) is None
    assert store.healthy


async def test_what_was_put_is_found_as_it_was(store: CheckpointStore) -> None:
    item = checkpoint(
        text="ünï <\u2028\u0085\x00> 漢字 🙂",
        replacement=(
            {
                "role": "system",
                "content": [{"type": "text", "text": "a", "cache_control": {"x": [1, 2.5, None]}}],
            },
            {"role": "user", "content": "half a pair \ud83d", "unknown": 2**70},
        ),
        created=NOW + 0.123456,
        kind="pruned",
    )
    await store.put(item)
    assert await store.find("scope", [digest(1)]) == item


async def test_the_first_digest_that_is_stored_wins(store: CheckpointStore) -> None:
    await store.put(checkpoint(1))
    await store.put(checkpoint(3))
    for digests, expected in [([4, 3, 2, 1], 3), ([1, 3], 1), ([2, 1], 1), ([4, 2], None)]:
        found = await store.find("scope", [digest(number) for number in digests])
        assert (found and found.covered) == expected


async def test_scopes_do_not_see_each_other(store: CheckpointStore) -> None:
    await store.put(checkpoint(1, scope="one", text="first"))
    await store.put(checkpoint(1, scope="two", text="second"))
    found = await store.find("two", [digest(1)])
    assert found is not None
    assert found.replacement[0]["content"] == "second"
    for scope in ("three", "", "o", "one\x00", "one:*", "*", "One"):
        assert await store.find(scope, [digest(1)]) is None


async def test_a_second_put_of_a_key_replaces_the_first(store: CheckpointStore) -> None:
    await store.put(checkpoint(text="old"))
    await store.put(checkpoint(text="new"))
    found = await store.find("scope", [digest(1)])
    assert found == checkpoint(text="new")
    assert (await store.stats()).checkpoints == 1


async def test_what_is_stored_does_not_change_with_the_callers_objects(store: CheckpointStore) -> None:
    message = {"role": "user", "content": "as put"}
    await store.put(checkpoint(replacement=(message,)))
    message["content"] = "changed after putting"
    found = await store.find("scope", [digest(1)])
    assert found is not None
    found.replacement[0]["content"] = "changed after finding"
    again = await store.find("scope", [digest(1)])
    assert again is not None
    assert again.replacement[0]["content"] == "as put"


async def test_what_cannot_be_stored_is_left_out_and_does_not_raise(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await store.put(checkpoint(replacement=({"role": "user", "content": object()},)))
    assert await store.find("scope", [digest(1)]) is None
    assert "can't be encoded" in caplog.text


async def test_many_at_once(store: CheckpointStore) -> None:
    await asyncio.gather(*(store.put(checkpoint(number, text=f"text {number}")) for number in range(100)))
    found = await asyncio.gather(*(store.find("scope", [digest(number)]) for number in range(100)))
    assert [item and item.replacement[0]["content"] for item in found] == [f"text {n}" for n in range(100)]
    assert store.healthy


async def test_large_bodies_and_long_histories(store: CheckpointStore) -> None:
    await store.put(checkpoint(1, text="x" * 2_000_000))
    found = await store.find("scope", [digest(number) for number in range(3000, 0, -1)])
    assert found is not None
    assert len(found.replacement[0]["content"]) == 2_000_000


async def test_what_is_dropped_is_gone_at_once_and_for_good(opened: Open, url: str) -> None:
    store = opened()
    await store.put(checkpoint(1))
    await store.put(checkpoint(2, text="stays"))
    await store.put(checkpoint(1, scope="other"))
    assert await store.drop("scope", digest(1))
    assert await store.drop("scope", digest(9))
    again = opened() if not url.startswith("memory") else store
    for each in (store, again):
        assert await finds(each, 1) is None
        assert await finds(each, 2) == 2
        assert await each.find("other", [digest(1)]) is not None
    await store.put(checkpoint(1))
    assert await finds(store, 1) == 1


# Secrets


async def test_a_secret_is_made_once_and_is_the_same_for_all(opened: Open, url: str) -> None:
    one = opened()
    two = opened() if not url.startswith("memory") else one
    first = b"\x00\xff" * 16
    assert await one.secret("sealing", first) == first
    assert await two.secret("sealing", b"another") == first
    assert await two.secret("other", b"another") == b"another"


async def test_a_secret_outlives_ttl_and_purge_and_the_states_that_are_learned(
    opened: Open, clock: HandClock
) -> None:
    store = opened(ttl=60.0)
    assert await store.secret("sealing", b"first") == b"first"
    clock.advance(YEAR)
    await store.purge()
    for number in range(MOST_STATES + 1):
        await store.put_state(f"weights/{number}", b"")
        if number % 100 == 0:  # puts are queued, and the queue has an end
            await store.get_state("weights/0")
    assert await store.secret("sealing", b"second") == b"first"


# Documents


async def test_documents_are_their_owners_alone(store: CheckpointStore, clock: HandClock) -> None:
    documents = Documents(store, clock)
    await documents.keep("me", "resp_1", {"said": "mine", "deep": [{"a": None}]})
    await documents.keep("you", "resp_1", {"said": "yours"})
    assert await documents.fetch("me", "resp_1") == {"said": "mine", "deep": [{"a": None}]}
    assert await documents.fetch("you", "resp_1") == {"said": "yours"}
    assert await documents.fetch("me", "resp_2") is None
    assert await documents.fetch("they", "resp_1") is None
    await documents.keep("me", "resp_1", {"said": "changed"})
    assert await documents.fetch("me", "resp_1") == {"said": "changed"}
    assert await documents.drop("me", "resp_1")
    assert await documents.fetch("me", "resp_1") is None
    assert await documents.fetch("you", "resp_1") == {"said": "yours"}
    assert await documents.drop("me", "resp_1")


async def test_documents_expire_unless_they_are_used_and_go_with_a_purge(
    opened: Open, clock: HandClock
) -> None:
    store = opened(ttl=100.0)
    documents = Documents(store, clock)
    for name in ("old", "used"):
        await documents.keep("me", name, {"name": name})
    clock.advance(60)
    assert await documents.fetch("me", "used")
    clock.advance(60)
    assert await documents.fetch("me", "old") is None
    assert await documents.fetch("me", "used")
    await store.purge()
    assert await documents.fetch("me", "used") is None


async def test_nothing_of_a_conversation_is_logged(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="spillway.store")
    await store.put(checkpoint(text="SECRET"))
    await store.put(checkpoint(2, replacement=({"role": "user", "content": {"SECRET": object()}},)))
    await store.find("scope", [digest(1)])
    await store.purge()
    assert "SECRET" not in caplog.text


# Expiry and size


async def test_a_checkpoint_expires_after_its_last_use(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    await store.put(checkpoint(1))
    await store.put(checkpoint(2))
    clock.advance(60)
    assert await store.find("scope", [digest(1)]) is not None
    clock.advance(60)
    assert await store.find("scope", [digest(2), digest(1)]) == checkpoint(1)
    assert await store.export() == [checkpoint(1)]
    clock.advance(100)
    assert await store.find("scope", [digest(1)]) is None
    assert await store.stats() == StoreStats(0, 0, None)
    assert await store.export() == []


async def test_an_expired_checkpoint_can_be_put_again(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    await store.put(checkpoint())
    clock.advance(1000)
    await store.put(checkpoint(text="again"))
    assert await store.find("scope", [digest(1)]) == checkpoint(text="again")


@pytest.mark.parametrize("url", CAPPED, indirect=True)
async def test_above_the_size_cap_the_longest_unused_goes(opened: Open, clock: HandClock) -> None:
    store = opened(max_bytes=5000)
    for number in (1, 2, 3):
        await store.put(checkpoint(number, text="x" * 1200))
        clock.advance(1)
    assert await store.find("scope", [digest(1)]) is not None
    await store.put(checkpoint(4, text="x" * 1200))
    held = [number for number in (1, 2, 3, 4) if await store.find("scope", [digest(number)])]
    assert held == [1, 3, 4]
    stats = await store.stats()
    assert stats.checkpoints == 3
    assert stats.bytes <= 5000


async def test_a_checkpoint_above_the_cap_is_not_stored_and_displaces_none(opened: Open) -> None:
    store = opened(max_bytes=5000)
    assert await store.put(checkpoint(1))
    assert not await store.put(checkpoint(2, text="x" * 6000))
    assert await store.find("scope", [digest(2), digest(1)]) == checkpoint(1)


# Learned state


async def test_state_is_kept_and_replaced(store: CheckpointStore) -> None:
    assert await store.get_state("weights/ä b:*") is None
    await store.put_state("weights/ä b:*", b"\x00\xff one")
    await store.put_state("other", b"")
    assert await store.get_state("weights/ä b:*") == b"\x00\xff one"
    await store.put_state("weights/ä b:*", b"two")
    assert await store.get_state("weights/ä b:*") == b"two"
    assert await store.get_state("other") == b""


# Claims


async def test_one_of_many_gets_the_claim(store: CheckpointStore) -> None:
    taken = await asyncio.gather(*(store.claim("key", 60) for _ in range(50)))
    assert taken.count(True) == 1
    assert await store.claim("another", 60)


async def test_a_released_claim_is_free(store: CheckpointStore) -> None:
    await store.release("key")
    for _ in range(3):
        assert await store.claim("key", 60)
        assert not await store.claim("key", 60)
        await store.release("key")


async def test_a_claim_ends_by_itself(store: CheckpointStore, clock: HandClock) -> None:
    assert await store.claim("key", 0.05)
    clock.advance(1)
    await store.wait("key", 10)
    assert await store.claim("key", 60)


async def test_waiting_ends_with_the_release(store: CheckpointStore) -> None:
    assert await store.claim("key", 60)
    order = []

    async def waiter() -> None:
        await store.wait("key", 30)
        order.append("woken")

    async def releaser() -> None:
        order.append("released")
        await store.release("key")

    await asyncio.wait_for(asyncio.gather(waiter(), waiter(), releaser()), 20)
    assert order == ["released", "woken", "woken"]


async def test_waiting_has_an_end_and_a_free_key_none(store: CheckpointStore) -> None:
    await asyncio.wait_for(store.wait("free", 60), 20)
    assert await store.claim("key", 60)
    await asyncio.wait_for(store.wait("key", 0.02), 20)
    assert not await store.claim("key", 60)


async def test_a_clock_that_is_set_ends_no_claim_and_prolongs_none(
    store: CheckpointStore, clock: HandClock
) -> None:
    for seconds in (YEAR, -YEAR):
        assert await store.claim("key", 60)
        clock.jump(seconds)
        assert not await store.claim("key", 60)
        waiting = asyncio.ensure_future(store.wait("key", 60))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.release("key")
        await asyncio.wait_for(waiting, 20)


@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
async def test_a_clock_that_is_set_ends_no_checkpoint_and_prolongs_none(
    opened: Open, clock: HandClock, seconds: float
) -> None:
    store = opened(ttl=100.0)
    for number in (1, 2):
        await store.put(checkpoint(number))
    await store.stats()
    clock.advance(60)
    clock.jump(seconds)
    assert await store.find("scope", [digest(1)]) == checkpoint(1)
    clock.advance(3)
    assert await store.find("scope", [digest(1)]) == checkpoint(1)  # after a look at what has expired
    await store.put(checkpoint(3))
    clock.advance(60)
    assert await store.find("scope", [digest(2)]) is None
    clock.jump(-seconds)
    assert await store.find("scope", [digest(3)]) == checkpoint(3)
    clock.advance(101)
    assert await store.find("scope", [digest(3), digest(1)]) is None


@pytest.mark.parametrize("url", LASTING, indirect=True)
@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
async def test_what_was_kept_under_a_wrong_clock_lives_no_longer_under_the_right_one(
    opened: Open, clock: HandClock, seconds: float
) -> None:
    clock.jump(seconds)
    store = opened(ttl=100.0)
    await store.put(checkpoint(1))
    await store.stats()
    clock.jump(-seconds)
    assert await store.find("scope", [digest(1)]) == checkpoint(1)
    await store.close()
    for _ in range(3):  # restarts, each of which finds it, or not
        store = opened(ttl=100.0)
        assert await store.export() == [checkpoint(1)]
        clock.advance(30)
        await store.find("another", [digest(1)])
        await store.close()
    clock.advance(30)
    store = opened(ttl=100.0)
    assert await store.find("scope", [digest(1)]) is None


# The whole


async def test_stats_count_what_is_there(store: CheckpointStore, clock: HandClock) -> None:
    assert await store.stats() == StoreStats(0, 0, None)
    await store.put(checkpoint(1, created=NOW + 5))
    await store.put(checkpoint(2, created=NOW + 3, scope="other", text="x" * 1000))
    stats = await store.stats()
    assert (stats.checkpoints, stats.oldest) == (2, NOW + 3)
    assert 1000 < stats.bytes < 2000


async def test_export_gives_all_oldest_first(store: CheckpointStore) -> None:
    items = [checkpoint(number, scope=f"s{number % 3}", created=NOW - number) for number in range(250)]
    for item in items:
        await store.put(item)
    assert await store.export() == items[::-1]


async def test_purge_of_everything(store: CheckpointStore) -> None:
    for number in range(250):
        await store.put(checkpoint(number, scope=f"s{number % 3}"))
    await store.put_state("key", b"stays")
    assert await store.purge() == 250
    assert await store.purge() == 0
    assert await store.find("s1", [digest(1)]) is None
    assert await store.stats() == StoreStats(0, 0, None)
    assert await store.get_state("key") == b"stays"
    await store.put(checkpoint(1))
    assert await store.find("scope", [digest(1)]) is not None


async def test_purge_of_what_is_older(store: CheckpointStore) -> None:
    for number in range(5):
        await store.put(checkpoint(number, created=NOW + number))
    assert await store.purge(older_than=NOW + 3) == 3
    assert [item.covered for item in await store.export()] == [3, 4]
    assert await store.find("scope", [digest(number) for number in range(5)]) == checkpoint(
        3, created=NOW + 3
    )


async def test_closing_twice_is_fine(store: CheckpointStore) -> None:
    await store.close()
    await store.close()


# Stores that outlive a process


@pytest.mark.parametrize("url", LASTING, indirect=True)
async def test_a_restart_loses_nothing(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    for number in range(20):
        await store.put(checkpoint(number))
    await store.put_state("key", b"value")
    clock.advance(60)
    await store.find("scope", [digest(7)])
    await store.get_state("key")
    await store.close()
    clock.advance(60)
    store = opened(ttl=100.0)
    assert await store.export() == [checkpoint(7)]  # its use before the restart counts
    assert await store.find("scope", [digest(8), digest(7)]) == checkpoint(7)
    assert await store.get_state("key") == b"value"


@pytest.mark.parametrize("url", LASTING, indirect=True)
async def test_two_processes_see_each_others_checkpoints(opened: Open) -> None:
    one, two = opened(), opened()
    await one.put(checkpoint(1))
    await one.stats()  # it is written now

    seen = [await two.find("scope", [digest(1)])]

    async def look() -> None:
        while seen[-1] is None:
            seen.append(await two.find("scope", [digest(1)]))
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 20)
    assert seen[-1] == checkpoint(1)
    assert await one.purge() == 1
    assert await two.find("scope", [digest(1)]) is None


async def test_a_changed_copy_is_another_checkpoint(store: CheckpointStore) -> None:
    first = checkpoint()
    await store.put(first)
    await store.put(replace(first, digest=digest(2), tokens_after=5))
    assert await store.find("scope", [digest(1)]) == first
