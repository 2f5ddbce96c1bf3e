"""The whole proxy, and two of them, on a Redis with which something is wrong: what requests see, `/readyz`, the log, healing."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.store.guarded import LEASE, RENEWAL
from tests.engine.spillway import spillway_server
from tests.fakes import Gate, LlamaCppFake
from tests.fakes.waiting import wait_until
from tests.proxying import running_proxy
from tests.store.between import between
from tests.store.stack import Conversation, backend, healed, ready, stalling, summaries, survives
from tests.store.support import RedisServer
from tests.store.support import own_redis as server

__all__ = ["server"]

LOGGER = "spillway.store"


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def stored(server: RedisServer) -> int:
    with server.client() as client:
        return sum(1 for _ in client.scan_iter("spillway:cp:*"))


def test_stopped_and_started_again(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with backend() as fake, running_proxy(fake, store=server.url) as proxy:
        before = Conversation(proxy.url, "before")
        before.turn()
        assert ready(proxy.url) == "ok"
        server.kill()
        survives(proxy.url, "meanwhile")
        # What only the server knew is made once more, and then remembered here.
        assert [before.turn() for _ in range(3)][1:] == ["forwarded"] * 2
        assert ready(proxy.url).startswith("is unavailable (")
        assert len(said(caplog)) == 1
        server.start()
        healed(proxy.url)
        Conversation(proxy.url, "after").turn()
        # What was kept in memory follows, a piece with each request.
        for _ in range(3):
            before.turn()
        assert stored(server) == 3
    assert [line.split(" (")[0] for line in said(caplog)] == [
        "store redis is unavailable",
        "store redis is available again",
    ]


def test_hanging(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with backend() as fake, running_proxy(fake, store=server.url, store_timeout=1.0) as proxy:
        Conversation(proxy.url, "before").turn()
        server.send(signal.SIGSTOP)
        try:
            survives(proxy.url, "meanwhile")
            assert ready(proxy.url) == "is unavailable (TimeoutError): working without it"
            with ThreadPoolExecutor(8) as pool:
                each = [Conversation(proxy.url, f"at once {number}") for number in range(8)]
                list(pool.map(Conversation.turn, each))
        finally:
            server.send(signal.SIGCONT)
        healed(proxy.url)
    assert len(said(caplog)) == 2


def test_slow(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with (
        between(server.port) as wire,
        backend() as fake,
        running_proxy(fake, store=f"redis://127.0.0.1:{wire.port}/0", store_timeout=1.0) as proxy,
    ):
        Conversation(proxy.url, "before").turn()
        wire.delay = 5.0
        conversation = survives(proxy.url, "meanwhile")
        quick = sum(_seconds(conversation) < 2.5 for _ in range(5))
        assert quick >= 3, "every request waited for the store"
        assert ready(proxy.url) == "is unavailable (TimeoutError): working without it"
        wire.delay = 0.0
        healed(proxy.url)
    assert len(said(caplog)) == 2


def _seconds(conversation: Conversation) -> float:
    started = time.monotonic()
    conversation.turn()
    return time.monotonic() - started


def test_replies_of_garbage(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with (
        between(server.port) as wire,
        backend() as fake,
        running_proxy(fake, store=f"redis://127.0.0.1:{wire.port}/0") as proxy,
    ):
        before = Conversation(proxy.url, "before")
        before.turn()
        wire.garbage = True
        survives(proxy.url, "meanwhile")
        assert ready(proxy.url).startswith("is unavailable (")
        wire.garbage = False
        healed(proxy.url)
        # Nothing of the garbage is left in a connection that is used again.
        assert before.turn() == "forwarded"
    assert len(said(caplog)) == 2
    assert "html" not in caplog.text


def test_full(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with backend() as fake, running_proxy(fake, store=server.url) as proxy, server.client() as client:
        before = Conversation(proxy.url, "before")
        before.turn()
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "100kb")
        survives(proxy.url, "meanwhile")
        assert [before.turn() for _ in range(3)] == ["forwarded"] * 3
        assert ready(proxy.url) == "takes no writes (OutOfMemoryError): what is new is kept in memory"
        assert len(said(caplog)) == 1
        client.config_set("maxmemory", "0")
        healed(proxy.url)
        before.turn()
        assert stored(server) == 2
    assert said(caplog)[1:] == ["store redis takes writes again"]


def test_a_replica_that_may_not_write(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    primary = RedisServer(tmp_path_factory.mktemp("primary"))
    primary.start()
    try:
        with backend() as fake, running_proxy(fake, store=server.url) as proxy, server.client() as client:
            with running_proxy(fake, store=primary.url) as other:
                before = Conversation(other.url, "before")
                before.turn()
            client.replicaof("127.0.0.1", str(primary.port))
            wait_until(lambda: stored(server) == 1, timeout=30)
            same = Conversation(proxy.url, "before", list(before.messages))
            assert [same.turn() for _ in range(3)] == ["forwarded"] * 3
            survives(proxy.url, "meanwhile")
            assert ready(proxy.url) == "takes no writes (ReadOnlyError): what is new is kept in memory"
            assert len(said(caplog)) == 1
            client.replicaof("NO", "ONE")
            healed(proxy.url)
            same.turn()
            assert stored(server) == 2
    finally:
        primary.kill()


def test_a_wrong_password_until_it_is_the_right_one(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    url = f"redis://:SECRET@127.0.0.1:{server.port}/0"
    with backend() as fake, server.client() as client:
        client.config_set("requirepass", "another")
        with running_proxy(fake, store=url) as proxy:
            survives(proxy.url, "meanwhile")
            told = ready(proxy.url)
            assert told.startswith("is unavailable (")
            client.config_set("requirepass", "SECRET")
            healed(proxy.url)
    assert "SECRET" not in told + caplog.text
    assert len(said(caplog)) == 2


def test_two_replicas_lose_it_and_find_it_again(server: RedisServer) -> None:
    with backend() as fake, running_proxy(fake, store=server.url) as one, running_proxy(fake, store=server.url) as two:
        shared = Conversation(one.url, "shared")
        shared.turn()
        server.kill()
        survives(one.url, "mine")
        survives(two.url, "yours")
        server.start()
        healed(one.url)
        healed(two.url)
        mine = Conversation(one.url, "mine anew")
        mine.turn()
        asked = summaries(fake)
        mine.url = two.url
        assert mine.turn() == "forwarded"
        assert summaries(fake) == asked


def named(fake: LlamaCppFake) -> list[dict[str, str]]:
    """The backend by the name that the other proxy has for it: what is stored holds for a backend of one name."""
    return [{"url": fake.url, "name": fake.kind}]


def renewals(server: RedisServer) -> Callable[[], int]:
    """Counts how often the one claim was seen to be renewed."""
    seen: list[int] = []

    def count() -> int:
        with server.client() as client:
            (name,) = client.scan_iter("spillway:cl:*")
            seen.append(client.pttl(name))
        return sum(later > earlier for earlier, later in itertools.pairwise(seen))

    return count


def test_who_waits_for_a_replica_that_is_killed_goes_on_within_seconds(server: RedisServer, tmp_path: Path) -> None:
    gate = Gate()
    with (
        stalling(gate) as fake,
        spillway_server([], log=tmp_path / "owner", store=server.url, backends=named(fake)) as owner,
        running_proxy(fake, store=server.url) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(Conversation(owner.url, "shared").turn)
        gate.wait_reached(30)
        second = pool.submit(Conversation(other.url, "shared", bound=60).turn)
        # For as long as the owner works its claim is held, longer than any one lease.
        renewed = renewals(server)
        wait_until(lambda: renewed() > LEASE / RENEWAL + 1, timeout=60)
        assert not second.done()
        assert summaries(fake) == 1
        os.kill(owner.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert second.result(60) != "forwarded"
        assert time.monotonic() - killed < 3 * LEASE
        assert first.exception() is not None
        assert summaries(fake) == 2
        gate.open()
