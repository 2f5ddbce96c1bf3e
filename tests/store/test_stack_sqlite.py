"""The whole proxy on a SQLite file with which something is wrong: what requests see, `/readyz`, the log, and healing."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.spillway import spillway_server
from tests.fakes.waiting import wait_until
from tests.proxying import running_proxy
from tests.store.stack import HEALED, Conversation, backend, healed, ready, survives

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
    """How many checkpoints are in the file."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
        return count


def soundness(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as db:
        told: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        return told


def test_locked_by_another_process(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with backend() as fake, running_proxy(fake, store=f"sqlite:///{path}") as proxy:
        before = Conversation(proxy.url, "before")
        before.turn()
        assert ready(proxy.url) == "ok"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            survives(proxy.url, "meanwhile")
            # What was stored before is still read, though nothing can be written.
            assert [before.turn() for _ in range(4)] == ["forwarded"] * 4
            assert ready(proxy.url) == "takes no writes (database is locked): what is new is kept in memory"
            assert len(said(caplog)) == 1
            db.execute("ROLLBACK")
        healed(proxy.url)
        wait_until(lambda: stored(path) == 2, timeout=HEALED)
    assert said(caplog) == [
        "store sqlite takes no writes (database is locked): what is new is kept in memory",
        "store sqlite takes writes again",
    ]


@pytest.mark.parametrize("how", ["header", "middle", "cut", "nothing"])
def test_damaged_while_running(how: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
            "nothing": b"",
        }[how]
        with path.open("r+b") as file:
            file.write(bad)
            file.truncate(len(bad))
        actions = [conversation.turn() for _ in range(4)]
        assert actions[-2:] == ["forwarded"] * 2
        survives(proxy.url, "after")
        healed(proxy.url)
        wait_until(lambda: stored(path) >= 1, timeout=HEALED)
    assert soundness(path) == "ok"
    assert sum("is damaged" in line for line in said(caplog)) <= 1
    assert len(said(caplog)) <= 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if (
        os.geteuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small_disk / "spillway.sqlite3"
    with backend() as fake, running_proxy(fake, store=f"sqlite:///{path}") as proxy:
        before = Conversation(proxy.url, "before")
        before.turn()
        wait_until(lambda: stored(path) == 1)
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        for number in range(60):  # what was reserved already is used up
            if ready(proxy.url) != "ok":
                break
            Conversation(proxy.url, f"filling {number}").turn()
        survives(proxy.url, "meanwhile")
        assert [before.turn() for _ in range(2)] == ["forwarded"] * 2
        assert ready(proxy.url).startswith("takes no writes (")
        lines = len(said(caplog))
        ballast.unlink()
        healed(proxy.url)
    assert lines == 1
    assert said(caplog)[1:] == ["store sqlite takes writes again"]
    assert stored(path) >= 2


def test_files_that_may_not_grow(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process whose files the system keeps from growing, as a quota does."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # cut short, it would break what is run after this
    log = tmp_path / "log"
    with backend() as fake, spillway_server([fake.url], log=log, store=f"sqlite:///{path}") as server:
        before = Conversation(server.url, "before")
        before.turn()
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        survives(server.url, "meanwhile")
        assert [before.turn() for _ in range(2)] == ["forwarded"] * 2
        assert ready(server.url).startswith("takes no writes (")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        healed(server.url)
        wait_until(lambda: stored(path) == 2, timeout=HEALED)
        assert server.log.count("takes no writes (") == 1


def command(*words: str, store: str) -> str:
    """What `spillway store …` prints."""
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
        wait_until(lambda: "checkpoints 3\n" in command("stats", store=url), timeout=20)
        assert command("purge", store=url) == "purged 3 checkpoints\n"
        assert stored(path) == 0
        assert b"before 1" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert ready(proxy.url) == "ok"
        # Shortened again, once, and kept again.
        assert [conversations[0].turn() != "forwarded" for _ in range(3)] == [True, False, False]
        assert "checkpoints 1\n" in command("stats", store=url)
    assert said(caplog) == []


def test_many_conversations_at_once_keep_within_size_and_age(path: Path) -> None:
    url = f"sqlite:///{path}"
    with backend() as fake, running_proxy(fake, store=url, store_bytes=20_000, store_ttl=3600) as proxy:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: Conversation(proxy.url, f"c {number}").turn(), range(40)))
        assert ready(proxy.url) == "ok"
        lines = dict(line.split(" ", 1) for line in command("stats", store=url).splitlines())
        assert 0 < int(lines["bytes"]) <= 20_000
        assert int(lines["checkpoints"]) < 40
