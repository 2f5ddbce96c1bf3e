"""Checkpoints in a SQLite file or in memory, read and written by one thread."""

import asyncio
import json
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from platformdirs import user_state_path

from proxy.core.history.checkpoint import Checkpoint
from proxy.store.driver import MAX_VALUES, Driver, Found, StoreLimits, credential_of

T = TypeVar("T")

APPLICATION_ID = 0x5350_4C57
"""Mark of Spillway's files (`PRAGMA application_id`): "SPLW"."""
SCHEMA_VERSION = 1
LOCK_SHARE = 0.2
"""Share of an operation's time limit that a write waits for another process's lock, since reads queue after it."""
# At the limit, each write used to sort all rows by their last use: 59 ms with 30,000 rows, while reads waited. Making
# room for more than one checkpoint costs 8 ms on average.
ROOM_SHARE = 0.95
"""Share of the size limit that is left after it was exceeded, so that not every write has to delete rows."""
EVICTED = 256
"""Most rows deleted at a time, since reads wait for it."""

_OPEN = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA journal_size_limit = 16777216;
PRAGMA secure_delete = ON;
BEGIN;
CREATE TABLE IF NOT EXISTS checkpoints (scope TEXT NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
  used REAL NOT NULL, created REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS held ON checkpoints (scope, digest, size, used);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_MARK = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""Primary codes of errors after which a connection can still be used (https://www.sqlite.org/rescode.html)."""
_FIND = "SELECT body, used FROM checkpoints WHERE scope = ? AND digest = ? AND used > ?"
_HELD = "SELECT DISTINCT digest FROM checkpoints WHERE scope = ? LIMIT ?"
_USE = "UPDATE checkpoints SET used = ? WHERE scope = ? AND digest = ?"
_EXPIRE = "DELETE FROM checkpoints WHERE rowid IN (SELECT rowid FROM checkpoints WHERE used <= ? LIMIT ?)"
# One statement that reads from the index: a Python loop would wait for the interpreter lock at each row, which takes seconds.
_EVICT = """DELETE FROM checkpoints WHERE rowid IN (
  SELECT rowid FROM (SELECT rowid, size, sum(size) OVER (ORDER BY used, rowid) AS total FROM (
    SELECT rowid, size, used FROM checkpoints WHERE scope IN (SELECT value FROM json_each(?1))
    ORDER BY used, rowid LIMIT ?2))
  WHERE total - size < ?3) RETURNING size"""


def sqlite_path(url: str) -> Path | None:
    """Return the path in `sqlite:///PATH` (four slashes: absolute), for `sqlite` a file in the user's state folder.

    Returns None for `memory://`.

    Raises:
        ValueError: the URL has no path.
    """
    if url == "memory://":
        return None
    if url == "sqlite":
        return user_state_path("spillway") / "spillway.sqlite3"
    path = url.removeprefix("sqlite:///")
    if path in {url, "", ":memory:"} or "\0" in path:
        raise ValueError("write sqlite:///PATH, or sqlite:////PATH for an absolute path; memory:// needs no file")
    return Path(path).expanduser()


def open_sqlite(url: str, limits: StoreLimits) -> Driver:
    """Open `sqlite:///PATH`, `sqlite` or `memory://`; blocks. A locked or damaged file, or a full disk, does not prevent a start.

    Raises:
        ValueError: the file cannot be created or written, or is not Spillway's.
    """
    path = sqlite_path(url)
    driver = SqliteDriver(path, limits)
    try:
        driver.execute(lambda _: None)
    except OSError as error:
        raise ValueError(f"can't open {path} for writing: {(error.strerror or '').lower()}") from None
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise ValueError(f"{error}; name another file") from None
    return driver


class SqliteDriver:
    """See `Driver`. In a file, a checkpoint is committed when `put` returns, and survives a kill of the process."""

    name, shared = "sqlite", False

    def __init__(self, path: Path | None, limits: StoreLimits) -> None:
        """Use the file at `path`, or memory if None; it is opened with the first statement."""
        self._path = path
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "spillway-sqlite")
        self._db: sqlite3.Connection | None = None

    async def find(self, scope: str, digests: Sequence[bytes]) -> Found:
        """See `Driver.find`."""
        return await self._call(partial(self._find, scope=scope, digests=digests))

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """See `Driver.put`."""
        await self._call(partial(self._put, checkpoint=checkpoint, body=body))

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        await self._call(partial(_delete, scope=scope, digest=digest))
        await self._call(_truncate_log)

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        return await self._call(partial(_secret if once else _state, key=key, new=new))

    async def lease(self, key: str, seconds: float) -> bool:
        """See `Driver.lease`. Always granted, because only one process serves from a file; several have to share a Redis."""
        del key, seconds
        return True

    async def export(self) -> list[bytes]:
        """See `Driver.export`."""
        after = self._limits.clock() - self._limits.ttl
        query = "SELECT body FROM checkpoints WHERE used > ?"
        rows = await self._call(lambda db: db.execute(query, (after,)).fetchall())
        return [body for (body,) in rows]

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`. Deleted content is overwritten."""
        return await self._call(partial(_purge, older_than=older_than))

    async def close(self) -> None:
        """See `Driver.close`; folds the write-ahead log into the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    async def _call(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.execute, statement)

    def execute(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        """Run a statement as one transaction. It blocks: call it in the driver's thread, except at the start.

        Raises:
            OSError, sqlite3.Error, ValueError: the file cannot be opened or used now, or is another program's.
        """
        self._db = self._db or self._connect()
        try:
            with self._db:
                return statement(self._db)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _PASSING:
                self._disconnect()  # the next statement opens the file again, since this connection may be broken
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            make_private(self._path)
        wait = LOCK_SHARE * self._limits.timeout
        # Not checked for the same thread: the thread that starts the proxy opens it, the driver's uses it from then on.
        db = sqlite3.connect(
            self._path or ":memory:", timeout=wait, isolation_level="IMMEDIATE", check_same_thread=False
        )
        try:
            db.executescript(_OPEN + ("" if _is_ours(db) else _MARK) + "COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _find(self, db: sqlite3.Connection, scope: str, digests: Sequence[bytes]) -> Found:
        now, ttl = self._limits.clock(), self._limits.ttl
        # A long history looks for hundreds of digests, of which few scopes hold any: 2 µs each were 1.4 of a turn's 10 ms.
        held = {digest for (digest,) in db.execute(_HELD, (scope, len(digests)))}
        for at, digest in enumerate(digests):
            if digest not in held and len(held) < len(digests):
                continue
            row = db.execute(_FIND, (scope, digest, now - ttl)).fetchone()
            if row is not None:
                # Record uses only now and then, so that not every lookup costs a write.
                if abs(now - row[1]) > min(ttl / 20, 3600.0):
                    with suppress(sqlite3.Error), db:
                        db.execute(_USE, (now, scope, digest))
                return at, row[0]
        return None

    def _put(self, db: sqlite3.Connection, checkpoint: Checkpoint, body: bytes) -> None:
        now = self._limits.clock()
        _delete(db, checkpoint.scope, checkpoint.digest)
        row = (checkpoint.scope, checkpoint.digest, len(body), now, checkpoint.created, body)
        db.execute("INSERT INTO checkpoints (scope, digest, size, used, created, body) VALUES (?, ?, ?, ?, ?, ?)", row)
        total, oldest = db.execute("SELECT sum(size), min(used) FROM checkpoints").fetchone()
        if oldest <= now - self._limits.ttl:
            db.execute(_EXPIRE, (now - self._limits.ttl, EVICTED))
        if total > self._limits.max_bytes:
            _evict(db, ROOM_SHARE * self._limits.max_bytes)


def _is_ours(db: sqlite3.Connection) -> bool:
    """Return whether the file is marked as Spillway's; if not, it is new.

    Raises:
        ValueError: the file belongs to another program, or to a newer version.
        sqlite3.Error: the file cannot be read.
    """
    marked: bool = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not marked and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise ValueError("it is the database of another program; name another file")
    if version > SCHEMA_VERSION:
        raise ValueError(f"its schema is of version {version}, of a newer Spillway; name another file")
    return marked


def _evict(db: sqlite3.Connection, room: float) -> None:
    """Delete the least recently used rows of each credential above its equal share of `room`, the largest credential first."""
    # By credential, because with one common order a key that stored a thousand responses displaced everybody else's.
    # Deleting 256 of 50,000 rows of 200 credentials takes 0.07 s.
    held, scopes = Counter[str](), defaultdict[str, list[str]](list)
    for scope, size in db.execute("SELECT scope, sum(size) FROM checkpoints GROUP BY scope"):
        held[credential_of(scope)] += size
        scopes[credential_of(scope)].append(scope)
    sizes = sorted(held.values())
    # Credentials below the share keep everything, and the others share the rest. If the n smallest keep everything, the share is
    # (room - their sum) / (others); the right n is the one with the largest share.
    smallest = accumulate(sizes[:-1], initial=0)
    share = max((room - subtotal) / (len(sizes) - n) for n, subtotal in enumerate(smallest))
    rows, excess = EVICTED, held.total() - room
    for owner, size in held.most_common():
        if size <= share or rows <= 0 or excess <= 0:
            break
        deleted = db.execute(_EVICT, (json.dumps(scopes[owner]), rows, min(size - share, excess))).fetchall()
        rows -= len(deleted)
        excess -= sum(size for (size,) in deleted)


def _purge(db: sqlite3.Connection, older_than: float | None) -> int:
    count = db.execute("DELETE FROM checkpoints WHERE ?1 IS NULL OR created < ?1", (older_than,)).rowcount
    db.commit()
    db.executescript("PRAGMA incremental_vacuum")
    _truncate_log(db)
    return count


def _truncate_log(db: sqlite3.Connection) -> None:
    """Empty the write-ahead log, where deleted or replaced content would stay until it is overwritten."""
    # Deleted content once stayed in the log until the process ended.
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _delete(db: sqlite3.Connection, scope: str, digest: bytes) -> None:
    db.execute("DELETE FROM checkpoints WHERE scope = ? AND digest = ?", (scope, digest))


def _state(db: sqlite3.Connection, key: str, new: bytes | None) -> bytes | None:
    row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    if new is None:
        return row[0] if row else None
    if row is None and db.execute("SELECT count(*) FROM state").fetchone()[0] >= MAX_VALUES:
        db.execute(
            "DELETE FROM state WHERE key IN (SELECT key FROM state ORDER BY random() LIMIT ?)", (MAX_VALUES // 8 + 1,)
        )
    db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, new))
    return new


def _secret(db: sqlite3.Connection, key: str, new: bytes | None) -> bytes | None:
    if new is not None:
        db.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", (key, new))
    row = db.execute("SELECT value FROM secrets WHERE name = ?", (key,)).fetchone()
    return row[0] if row else None


def make_private(path: Path) -> None:
    """Create a missing folder (mode 0700) and file (0600), and make an existing file and its side files private.

    SQLite gives new side files the mode of the database.

    Raises:
        OSError: the file cannot be created or written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError, PermissionError):  # the file may be another user's, though writable
            Path(f"{path}{suffix}").chmod(0o600)
