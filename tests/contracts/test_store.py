"""What every store does alike. A new kind of store is one line in `KINDS`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.store import Store, driver, sqlite
from proxy.store.driver import encode
from tests.store.support import NOW, HandClock, RedisServer, checkpoint, digest, finds, open_with, redis_server

__all__ = ["redis_server"]

pytestmark = pytest.mark.anyio

Open = Callable[..., Store]


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
    stores: list[Store] = []

    def opener(**limits: Any) -> Store:
        stores.append(open_with(url, clock, **limits))
        return stores[-1]

    yield opener
    for store in stores:
        await store.close()


@pytest.fixture
async def store(opened: Open) -> Store:
    return opened()


# Finding


async def test_an_empty_store_finds_nothing(store: Store) -> None:
    assert await store.find("scope", [digest(1)]) is None
    assert await store.find("scope", []) is None
    assert store.healthy


async def test_what_was_put_is_found_as_it_was(store: Store) -> None:
    item = checkpoint(
        text="ünï <\u2028\u0085\x00> 漢字 🙂",
        replacement=(
            {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"x": [1, 2.5, None]}}]},
            {"role": "user", "content": "half a pair \ud83d", "unknown": 2**70},
        ),
        created=NOW + 0.123456,
        kind="pruned",
    )
    await store.put(item)
    assert await store.find("scope", [digest(1)]) == item


async def test_the_first_digest_that_is_stored_wins(store: Store) -> None:
    await store.put(checkpoint(1))
    await store.put(checkpoint(3))
    for digests, expected in [([4, 3, 2, 1], 3), ([1, 3], 1), ([2, 1], 1), ([4, 2], None)]:
        found = await store.find("scope", [digest(number) for number in digests])
        assert (found and found.covered) == expected


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    await store.put(checkpoint(1, scope="one", text="first"))
    await store.put(checkpoint(1, scope="two", text="second"))
    found = await store.find("two", [digest(1)])
    assert found is not None
    assert found.replacement[0]["content"] == "second"
    for scope in ("three", "", "o", "one\x00", "one:*", "*", "One"):
        assert await store.find(scope, [digest(1)]) is None


async def test_what_is_stored_does_not_change_with_the_callers_objects(store: Store) -> None:
    message = {"role": "user", "content": "as put"}
    await store.put(checkpoint(replacement=(message,)))
    message["content"] = "changed after putting"
    found = await store.find("scope", [digest(1)])
    assert found is not None
    found.replacement[0]["content"] = "changed after finding"
    again = await store.find("scope", [digest(1)])
    assert again is not None
    assert again.replacement[0]["content"] == "as put"


async def test_what_cannot_be_stored_is_left_out_and_does_not_raise(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert not await store.put(checkpoint(replacement=({"role": "user", "content": object()},)))
    assert await store.find("scope", [digest(1)]) is None
    assert "can't be encoded" in caplog.text


async def test_many_at_once(store: Store) -> None:
    await asyncio.gather(*(store.put(checkpoint(number, text=f"text {number}")) for number in range(100)))
    found = await asyncio.gather(*(store.find("scope", [digest(number)]) for number in range(100)))
    assert [item and item.replacement[0]["content"] for item in found] == [f"text {n}" for n in range(100)]
    assert store.healthy


async def test_large_bodies_and_long_histories(store: Store) -> None:
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


# Values


async def test_values_are_stored_and_replaced(opened: Open, url: str) -> None:
    store = opened()
    assert await store.value("weights/ä b:*") is None
    assert await store.value("weights/ä b:*", b"\x00\xff one") == b"\x00\xff one"
    await store.value("other", b"")
    await store.value("weights/ä b:*", b"two")
    again = opened() if not url.startswith("memory") else store
    assert await again.value("weights/ä b:*") == b"two"
    assert await again.value("other") == b""


@pytest.mark.parametrize("url", CAPPED, indirect=True)
async def test_values_have_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite, driver):
        monkeypatch.setattr(module, "MAX_VALUES", 10)
    for number in range(25):
        await store.value(f"model {number}", b"value")
    left = [await store.value(f"model {number}") for number in range(25)]
    assert 1 <= left.count(b"value") <= 10
    assert left[-1] == b"value"


async def test_a_secret_is_made_once_and_outlives_ttl_and_purge(opened: Open, url: str, clock: HandClock) -> None:
    one = opened(ttl=60.0)
    two = opened(ttl=60.0) if not url.startswith("memory") else one
    first = b"\x00\xff" * 16
    assert await one.value("sealing", first, once=True) == first
    assert await two.value("sealing", b"another", once=True) == first
    assert await two.value("other", b"another", once=True) == b"another"
    assert await two.value("sealing") is None
    clock.advance(YEAR)
    await one.purge()
    assert await one.value("sealing", b"second", once=True) == first


# Documents


async def test_documents_are_their_owners_alone(store: Store, clock: HandClock) -> None:
    await store.put_document("me", "resp_1", {"said": "mine", "deep": [{"a": None}]})
    await store.put_document("you", "resp_1", {"said": "yours"})
    assert await store.document("me", "resp_1") == {"said": "mine", "deep": [{"a": None}]}
    assert await store.document("you", "resp_1") == {"said": "yours"}
    assert await store.document("me", "resp_2") is None
    assert await store.document("they", "resp_1") is None
    await store.put_document("me", "resp_1", {"said": "changed"})
    assert await store.document("me", "resp_1") == {"said": "changed"}
    assert await store.drop_document("me", "resp_1")
    assert await store.document("me", "resp_1") is None
    assert await store.document("you", "resp_1") == {"said": "yours"}
    assert await store.drop_document("me", "resp_1")


async def test_documents_expire_unless_they_are_used_and_go_with_a_purge(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    for name in ("old", "used"):
        await store.put_document("me", name, {"name": name})
    clock.advance(60)
    assert await store.document("me", "used")
    clock.advance(60)
    assert await store.document("me", "old") is None
    assert await store.document("me", "used")
    await store.purge()
    assert await store.document("me", "used") is None


async def test_nothing_of_a_conversation_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
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
    assert await store.export() == []


@pytest.mark.parametrize("url", CAPPED, indirect=True)
async def test_above_the_size_cap_the_longest_unused_goes(opened: Open, clock: HandClock) -> None:
    store = opened(max_bytes=5000)
    for number in (1, 2, 3):
        await store.put(checkpoint(number, text="x" * 1200))
        clock.advance(7200)
    assert await store.find("scope", [digest(1)]) is not None
    await store.put(checkpoint(4, text="x" * 1200))
    held = [number for number in (1, 2, 3, 4) if await store.find("scope", [digest(number)])]
    assert held == [1, 3, 4]
    assert sum(len(encode(item)) for item in await store.export()) <= 5000


@pytest.mark.parametrize("url", CAPPED, indirect=True)
async def test_above_the_size_cap_a_credential_that_stores_much_displaces_its_own(opened: Open, clock: HandClock) -> None:
    store = opened(max_bytes=8000)
    await store.put(checkpoint(1, scope="quiet|backend|m", text="x" * 1200))
    for number in range(2, 12):
        clock.advance(7200)
        await store.put(checkpoint(number, scope=f"busy|backend|m{number % 2}", text="x" * 1200))
    left = {(item.scope.partition("|")[0], item.covered) for item in await store.export()}
    assert ("quiet", 1) in left
    assert ("busy", 11) in left
    assert ("busy", 2) not in left


async def test_a_checkpoint_above_the_cap_is_not_stored_and_displaces_none(opened: Open) -> None:
    store = opened(max_bytes=5000)
    assert await store.put(checkpoint(1))
    assert not await store.put(checkpoint(2, text="x" * 6000))
    assert await store.find("scope", [digest(2), digest(1)]) == checkpoint(1)


# Claims


async def test_one_at_a_time_holds_a_claim(opened: Open, url: str) -> None:
    one = opened()
    two = opened() if url.startswith("redis") else one
    holding, most = 0, 0

    async def work(store: Store, key: str) -> None:
        nonlocal holding, most
        async with store.claim(key, 60):
            holding += 1
            most = max(most, holding)
            await asyncio.sleep(0)
            holding -= 1

    await asyncio.gather(*(work(store, "key") for store in (one, two) * 4))
    assert most == 1
    async with one.claim("key", 60), two.claim("another", 60):
        pass


async def test_waiting_for_a_claim_has_an_end(opened: Open, url: str) -> None:
    one = opened()
    two = opened() if url.startswith("redis") else one
    async with one.claim("key", 60):
        async with asyncio.timeout(20), two.claim("key", 0.02):
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), two.claim("key", 60):
                pytest.fail("it was held")
    async with asyncio.timeout(20), two.claim("key", 60):
        pass


async def test_a_claim_ends_with_what_it_was_made_for(store: Store) -> None:
    async def fail() -> None:
        async with store.claim("key", 60):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with asyncio.timeout(20), store.claim("key", 60):
        pass


# The whole


async def test_export_gives_all_oldest_first(store: Store) -> None:
    items = [checkpoint(number, scope=f"s{number % 3}", created=NOW - number) for number in range(250)]
    for item in items:
        await store.put(item)
    assert await store.export() == items[::-1]


async def test_purge_of_everything(store: Store) -> None:
    for number in range(250):
        await store.put(checkpoint(number, scope=f"s{number % 3}"))
    await store.value("key", b"stays")
    assert await store.purge() == 250
    assert await store.purge() == 0
    assert await store.find("s1", [digest(1)]) is None
    assert await store.value("key") == b"stays"
    assert await store.export() == []
    await store.put(checkpoint(1))
    assert await store.find("scope", [digest(1)]) is not None


async def test_purge_of_what_is_older(store: Store) -> None:
    for number in range(5):
        await store.put(checkpoint(number, created=NOW + number))
    assert await store.purge(older_than=NOW + 3) == 3
    assert [item.covered for item in await store.export()] == [3, 4]
    assert await store.find("scope", [digest(number) for number in range(5)]) == checkpoint(3, created=NOW + 3)


# Stores that outlive a process


@pytest.mark.parametrize("url", LASTING, indirect=True)
async def test_a_restart_loses_nothing(opened: Open, clock: HandClock) -> None:
    store = opened(ttl=100.0)
    for number in range(20):
        await store.put(checkpoint(number))
    clock.advance(60)
    await store.value("key", b"value")
    await store.find("scope", [digest(7)])
    await store.close()
    clock.advance(60)
    store = opened(ttl=100.0)
    assert await store.export() == [checkpoint(7)]  # its use before the restart counts
    assert await store.find("scope", [digest(8), digest(7)]) == checkpoint(7)
    assert await store.value("key") == b"value"


@pytest.mark.parametrize("url", ["redis"], indirect=True)
async def test_replicas_see_each_others_checkpoints(opened: Open) -> None:
    one, two = opened(), opened()
    assert await finds(two, 1) is None
    await one.put(checkpoint(1))
    assert await finds(two, 1) == 1
