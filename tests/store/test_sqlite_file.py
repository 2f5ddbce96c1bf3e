"""The file of the SQLite store: who may read it, whose it is, damage, and a kill in the middle of writing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from proxy.errors import SettingError
from proxy.history.checkpoint import CheckpointStore
from proxy.store.sqlite import SqliteStore
from proxy.store.sqlite_rows import APPLICATION_ID
from tests.fakes.waiting import await_until
from tests.store.support import HandClock, checkpoint, digest, eventually, open_with

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spillway.sqlite3"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def contents(path: Path) -> bytes:
    return path.read_bytes()


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def damage(path: Path, how: str) -> bytes:
    """Damage the file; returns what it has become."""
    good = path.read_bytes()
    bad = {
        "noise": good[:100] + b"\xa5" * (len(good) - 100),
        "header": b"\xa5" * 100 + good[100:],
        "text": b"these are not the bytes of a database\n" * 100,
        "cut": good[: len(good) // 2],
        "later": good[:8192] + b"\xa5" * 409600 + good[417792:],
    }[how]
    with path.open("r+b") as file:  # in place: a running process has the file open
        file.write(bad)
        file.truncate()
    return bad


async def filled(path: Path, clock: HandClock, count: int = 3) -> None:
    store = open_with(f"sqlite:///{path}", clock)
    for number in range(count):
        await store.put(checkpoint(number, text="x" * 5000))
    await store.close()


async def works(store: CheckpointStore) -> bool:
    await store.put(checkpoint(1000))
    found = await store.find("scope", [digest(1000)])
    return found == checkpoint(1000) and store.healthy


@pytest.mark.usefixtures("no_umask")
async def test_files_and_new_folders_are_private(tmp_path: Path, clock: HandClock) -> None:
    path = tmp_path / "one" / "two" / "spillway.sqlite3"
    store = open_with(f"sqlite:///{path}", clock)
    await store.put(checkpoint())
    await store.stats()
    assert {file.name: mode(file) for file in path.parent.iterdir()} == {
        "spillway.sqlite3": 0o600,
        "spillway.sqlite3-wal": 0o600,
        "spillway.sqlite3-shm": 0o600,
    }
    assert [mode(tmp_path / "one"), mode(tmp_path / "one" / "two")] == [0o700, 0o700]
    await store.close()


async def test_a_file_that_others_can_read_is_taken_from_them(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    os.chmod(path, 0o644)  # noqa: PTH101 - the linter takes the method for a blocking call
    store = open_with(f"sqlite:///{path}", clock)
    assert mode(path) == 0o600
    assert await works(store)
    await store.close()


async def test_a_relative_path_is_relative(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_with("sqlite:///kept/spillway.sqlite3", clock)
    assert (tmp_path / "kept" / "spillway.sqlite3").is_file()
    await store.close()


async def test_after_closing_everything_is_in_the_one_file(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    assert [file.name for file in path.parent.iterdir()] == ["spillway.sqlite3"]


@pytest.mark.parametrize("how", ["noise", "header", "text", "cut"])
async def test_a_damaged_file_is_moved_aside(
    how: str, path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path, clock)
    bad = damage(path, how)
    store = open_with(f"sqlite:///{path}", clock)
    assert await works(store)
    assert (await store.stats()).checkpoints == 1
    await store.close()
    assert contents(path.with_name(f"{path.name}.damaged"))[:100] == bad[:100]
    assert [f"{path} is damaged" in message for message in caplog.messages] == [True]


async def test_damage_that_shows_later_is_survived(
    path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path, clock, 200)
    store = open_with(f"sqlite:///{path}", clock)
    damage(path, "later")
    for number in range(200):
        await store.find("scope", [digest(number)])
        await store.put(checkpoint(number, text="again"))
    assert await works(store)
    await store.close()
    assert "is damaged" in caplog.text


async def test_of_damaged_files_the_latest_is_kept_and_a_purge_takes_it(path: Path, clock: HandClock) -> None:
    for _ in range(3):
        await filled(path, clock)
        damage(path, "noise")
        store = open_with(f"sqlite:///{path}", clock)
        await store.close()
    assert names(path) == ["spillway.sqlite3", "spillway.sqlite3.damaged"]
    store = open_with(f"sqlite:///{path}", clock)
    await store.purge()
    await store.close()
    assert names(path) == ["spillway.sqlite3"]


async def test_what_another_process_began_anew_is_not_set_aside(path: Path, clock: HandClock) -> None:
    """Two find the damage, and one is faster."""
    await filled(path, clock)
    one, two = (open_with(f"sqlite:///{path}", clock) for _ in range(2))
    damage(path, "noise")
    for store in (one, two):
        for number in range(3):
            await store.find("scope", [digest(number)])
        await store.put(checkpoint(1000))
        await store.stats()
    assert names(path) == [
        "spillway.sqlite3",
        "spillway.sqlite3-shm",
        "spillway.sqlite3-wal",
        "spillway.sqlite3.damaged",
        *(
            f"spillway.sqlite3.damaged{suffix}"
            for suffix in ("-shm", "-wal")
            if (path.parent / f"{path.name}.damaged{suffix}").exists()
        ),
    ]
    assert [store.healthy for store in (one, two)] == [True, True]
    assert (await one.stats()).checkpoints == (await two.stats()).checkpoints == 1
    for store in (one, two):
        await store.close()


@pytest.mark.parametrize("change", ["DROP TABLE state", "ALTER TABLE checkpoints DROP COLUMN created"])
async def test_a_file_that_is_not_what_its_version_says_is_set_aside(
    change: str, path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path, clock)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    store = open_with(f"sqlite:///{path}", clock)
    assert await works(store)
    await store.close()
    assert "is damaged (no such " in caplog.text


async def test_a_file_that_becomes_read_only_is_still_read(
    path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_with(f"sqlite:///{path}", clock)
    assert isinstance(store, SqliteStore)
    await store.put(checkpoint(1))
    await store.stats()

    def only(db: sqlite3.Connection, *, on: bool) -> bool:
        db.execute(f"PRAGMA query_only = {int(on)}")
        return True

    assert await store._thread.ask(partial(only, on=True))
    await store.put(checkpoint(2))
    await await_until(lambda: not store.healthy)
    assert await store.find("scope", [digest(2)]) == checkpoint(2)
    assert await store.find("scope", [digest(1)]) == checkpoint(1)
    assert await store.check() == (
        "takes no writes (attempt to write a readonly database): what is new is kept in memory"
    )
    await await_until(lambda: store.healthy or not store._thread.guard.ready_to_write, 30)
    await eventually(store.check, lambda state: state == "ok")  # opened anew, it may be written again
    await eventually(store.stats, lambda stats: stats.checkpoints == 2)
    await store.close()
    assert len(caplog.messages) == 1


async def test_the_database_of_another_program_is_left_alone(path: Path, clock: HandClock) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE precious (value)")
    before = contents(path)
    with pytest.raises(SettingError, match="it is the database of another program; name another file"):
        open_with(f"sqlite:///{path}", clock)
    assert contents(path) == before


async def test_a_newer_schema_is_left_alone(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingError, match="schema version 99, written by a newer Spillway"):
        open_with(f"sqlite:///{path}", clock)


async def test_an_empty_file_is_a_new_one(path: Path, clock: HandClock) -> None:
    sqlite3.connect(path).close()  # creates it, and writes nothing
    store = open_with(f"sqlite:///{path}", clock)
    assert await works(store)
    await store.close()


WRITER = """
import asyncio, sys
from tests.store.support import HandClock, checkpoint, open_with

async def main():
    store = open_with(sys.argv[1], HandClock())
    for number in range(1000000):
        await store.put(checkpoint(number, text="x" * 3000))
        if number % 7 == 6:
            await store.stats()  # what was put before is committed now
            print(number, flush=True)

asyncio.run(main())
"""


def killed_while_writing(path: Path) -> int:
    """The last number that a writer told to be committed before it was killed."""
    command = [sys.executable, "-c", WRITER, f"sqlite:///{path}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as writer:
        assert writer.stdout is not None
        told = [next(line for line in writer.stdout if int(line) > 300)]
        writer.kill()
        told += writer.stdout
    return int(told[-1])


async def test_a_kill_loses_nothing_that_was_committed(path: Path, clock: HandClock) -> None:
    committed = killed_while_writing(path)
    store = open_with(f"sqlite:///{path}", clock)
    kept = {item.covered for item in await store.export()}
    assert kept >= set(range(committed + 1))
    assert await works(store)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
