"""The whole proxy on a store with which something is wrong: what requests see, `/readyz`, the log, and healing."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.waiting import wait_until
from tests.proxying import UNREDUCED, running_proxy
from tests.store.stack import Conversation, backend, healed, ready, survives
from tests.store.support import RedisServer
from tests.store.support import own_redis as server

__all__ = ["server"]

ROOT = Path(__file__).parents[2]
LOGGER = "spillway.store"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "spillway.sqlite3"


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def stored(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
        return count


# Redis


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def hanging(server: RedisServer) -> Iterator[None]:
    server.send(signal.SIGSTOP)
    yield
    server.send(signal.SIGCONT)


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "100kb")
        yield
        client.config_set("maxmemory", "0")


@contextmanager
def locked_out(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("requirepass", "another")
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("trouble", "problem"),
    [
        (stopped, "is unavailable ("),
        (hanging, "is unavailable (TimeoutError): working without it"),
        (full, "takes no writes (OutOfMemoryError): what is new is kept in memory"),
        (locked_out, "is unavailable (AuthenticationError): working without it"),
    ],
)
@pytest.mark.rows(1)
def test_redis_in_trouble(
    trouble: Callable[[RedisServer], contextlib.AbstractContextManager[None]],
    problem: str,
    server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with backend() as fake, running_proxy(fake, store=server.url, store_timeout=1.0) as proxy:
        before = Conversation(proxy.url, "before")
        before.turn()
        assert ready(proxy.url) == "ok"
        with trouble(server):
            survives(proxy.url, "meanwhile")
            # What only the server knew is made once more where that can't be read, and then remembered here.
            assert [before.turn() for _ in range(3)][1:] == ["continued"] * 2
            assert ready(proxy.url, shared=True).startswith(problem)
            with ThreadPoolExecutor(8) as pool:
                each = [Conversation(proxy.url, f"at once {number}") for number in range(8)]
                list(pool.map(Conversation.turn, each))
        healed(proxy.url, shared=True)
        Conversation(proxy.url, "after").turn()
        with server.client() as client:
            assert sum(1 for _ in client.scan_iter("spillway:cp:*")) >= 1
    assert said(caplog)[-1] == "store redis works again"
    assert len(said(caplog)) <= 4
    assert "before" not in caplog.text


# SQLite


def test_locked_by_another_process(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with backend() as fake, running_proxy(fake, store=f"sqlite:///{path}") as proxy:
        before = Conversation(proxy.url, "before")
        before.turn()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            survives(proxy.url, "meanwhile")
            # What was stored before is still read, though nothing can be written.
            assert [before.turn() for _ in range(4)] == ["continued"] * 4
            assert ready(proxy.url) == "takes no writes (SQLITE_BUSY): what is new is kept in memory"
            db.execute("ROLLBACK")
        healed(proxy.url)
    assert said(caplog) == [
        "store sqlite takes no writes (SQLITE_BUSY): what is new is kept in memory",
        "store sqlite works again",
    ]


@pytest.mark.parametrize("how", ["header", "middle", "cut"])
def test_damaged_while_running(how: str, path: Path) -> None:
    with backend() as fake, running_proxy(fake, store=f"sqlite:///{path}") as proxy:
        conversation = Conversation(proxy.url, "before")
        conversation.turn()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        good = path.read_bytes()
        bad = {
            "header": b"\xa5" * 100 + good[100:],
            "middle": good[:4096] + b"\xa5" * (len(good) - 4096),
            "cut": good[: len(good) // 2],
        }[how]
        with path.open("r+b") as file:
            file.write(bad)
            file.truncate(len(bad))
        assert ready(proxy.url) != "ok"
        actions = [conversation.turn() for _ in range(4)]
        assert actions[-2:] == ["continued"] * 2
        survives(proxy.url, "after")


def command(*words: str, store: str) -> str:
    env = {**os.environ, "SPILLWAY_STORE": store}  # noqa: TID251 - handed to a child process, not read
    run = [sys.executable, "-m", "proxy", "store", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_purged_by_another_process_while_it_serves(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{path}"
    with backend() as fake, running_proxy(fake, store=url) as proxy:
        conversations = [Conversation(proxy.url, f"before {number}") for number in range(3)]
        for conversation in conversations:
            conversation.turn()
        # Each with what leads to it from the end of its history.
        wait_until(lambda: "checkpoints 6\n" in command("stats", store=url), timeout=20)
        assert command("purge", store=url) == "purged 6 checkpoints\n"
        assert stored(path) == 0
        assert b"before 1" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert ready(proxy.url) == "ok"
        # Shortened again, once, and stored again.
        assert [conversations[0].turn() not in UNREDUCED for _ in range(3)] == [True, False, False]
    assert stored(path) == 2
    assert said(caplog) == []


# A kill
