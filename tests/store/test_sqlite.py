"""The file of the SQLite store: who may read it, whose it is, older versions, damage, and a kill in the middle of writing."""

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.core.errors import SettingError
from proxy.store import Store
from proxy.store.driver import encode
from proxy.store.sqlite import APPLICATION_ID
from tests.store.support import NOW, HandClock, checkpoint, digest, eventually, finds, open_with

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spillway.sqlite3"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def filled(path: Path, clock: HandClock, count: int = 3) -> None:
    store = open_with(f"sqlite:///{path}", clock)
    for number in range(count):
        await store.put(checkpoint(number, text="x" * 5000))
    await store.close()


async def works(store: Store) -> bool:
    await store.put(checkpoint(1000))
    return await finds(store, 1000) == 1000 and store.healthy


@pytest.mark.usefixtures("no_umask")
async def test_files_and_new_folders_are_private(tmp_path: Path, clock: HandClock) -> None:
    path = tmp_path / "one" / "two" / "spillway.sqlite3"
    store = open_with(f"sqlite:///{path}", clock)
    await store.put(checkpoint())
    assert {file.name: mode(file) for file in path.parent.iterdir()} == {
        "spillway.sqlite3": 0o600,
        "spillway.sqlite3-wal": 0o600,
        "spillway.sqlite3-shm": 0o600,
    }
    assert mode(tmp_path / "one" / "two") == 0o700
    await store.close()


async def test_a_file_that_others_can_read_is_taken_from_them(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    os.chmod(path, 0o644)  # noqa: PTH101 - the linter takes the method for a blocking call
    store = open_with(f"sqlite:///{path}", clock)
    assert mode(path) == 0o600
    assert await works(store)
    await store.close()


OLD = f"""
PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
CREATE TABLE checkpoints (scope TEXT NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
  used REAL NOT NULL, created REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX held ON checkpoints (scope, digest, size, used);
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO state VALUES ('key', X'76616c7565');
PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;
"""


async def test_the_file_of_an_older_version_is_read(path: Path, clock: HandClock) -> None:
    item = checkpoint(1)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(OLD)
        for number, body in ((1, encode(item)), (2, b"unreadable")):
            row = ("scope", digest(number), len(body), NOW - 60, NOW - 60, body)
            db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)", row)
    store = open_with(f"sqlite:///{path}", clock)
    assert await finds(store, 2, 1) == 1
    assert await store.export() == [item]
    assert await store.value("key") == b"value"
    assert await store.value("sealing", b"new", once=True) == b"new"
    await store.put(checkpoint(1, text="again"))
    assert await store.export() == [checkpoint(1, text="again")]
    assert await works(store)
    await store.close()


async def test_what_is_purged_is_in_no_file_any_more(path: Path, clock: HandClock) -> None:
    store = open_with(f"sqlite:///{path}", clock)
    for number in range(50):
        await store.put(checkpoint(number, text="MARKER" * 500))
    assert b"MARKER" in on_disk(path)
    assert await store.purge() == 50
    assert b"MARKER" not in on_disk(path)
    assert len(on_disk(path)) < 100_000  # the shared memory file alone has 32 KiB
    await store.close()


async def test_a_damaged_file_is_no_reason_not_to_start(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 20_000)
    store = open_with(f"sqlite:///{path}", clock)
    await store.put(checkpoint(1000))
    assert await finds(store, 1000) == 1000
    assert "(SQLITE_CORRUPT)" in await store.check()
    await store.close()


def test_what_is_no_database_is_left_alone(path: Path, clock: HandClock) -> None:
    path.write_text("these are not the bytes of a database\n" * 100)
    with pytest.raises(SettingError, match="file is not a database; name another file"):
        open_with(f"sqlite:///{path}", clock)


async def test_the_database_of_another_program_is_left_alone(path: Path, clock: HandClock) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE precious (value)")
    before = on_disk(path)
    with pytest.raises(SettingError, match="it is the database of another program; name another file"):
        open_with(f"sqlite:///{path}", clock)
    assert on_disk(path) == before


async def test_a_newer_schema_is_left_alone(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingError, match="its schema is of version 99, of a newer Spillway"):
        open_with(f"sqlite:///{path}", clock)


async def test_a_file_that_is_locked_at_the_start_is_tried_again(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("DELETE FROM state")
        store = open_with(f"sqlite:///{path}", clock, timeout=0.2)
        assert await finds(store, 1) is None
        assert not store.healthy
    await eventually(lambda: finds(store, 1), lambda found: found == 1)
    await store.close()


WRITER = """
import asyncio, sys
from tests.store.support import HandClock, checkpoint, open_with

async def main():
    store = open_with(sys.argv[1], HandClock())
    for number in range(1000000):
        await store.put(checkpoint(number, text="x" * 3000))
        print(number, flush=True)

asyncio.run(main())
"""


def killed_while_writing(path: Path) -> int:
    """Return the last number that a writer said was committed before it was killed."""
    command = [sys.executable, "-c", WRITER, f"sqlite:///{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
        assert writer.stdout is not None
        lines = [next(line for line in writer.stdout if int(line) > 300)]
        writer.kill()
        lines += writer.stdout
    return int(lines[-1])


async def test_a_kill_loses_nothing_that_was_committed(path: Path, clock: HandClock) -> None:
    committed = killed_while_writing(path)
    store = open_with(f"sqlite:///{path}", clock)
    assert {item.covered for item in await store.export()} >= set(range(committed + 1))
    assert await works(store)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
