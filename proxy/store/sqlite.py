"""Records in a SQLite file, which one thread reads and writes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from proxy.store.driver import MAX_VALUES, Driver, Fault, StoredRecord, StoreLimits, refusal

T = TypeVar("T")

APPLICATION_ID = 0x5350_4C57
"""Marks the file as Spillway's (`PRAGMA application_id`): "SPLW"."""
SCHEMA_VERSION = 1
LOCK_SHARE = 0.2
"""Of the time that an operation may take, what a write waits for another process's lock: reads wait behind it."""
ROOM_SHARE = 0.95
"""Of the size cap, what is left where that is exceeded, so that not every write sorts all rows."""

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
# Some at a time, the longest unused first: deleting holds up whoever wants to read.
_EVICT = """DELETE FROM checkpoints WHERE rowid IN (
  SELECT rowid FROM (SELECT rowid, used, sum(size) OVER (ORDER BY used DESC, rowid DESC) AS total FROM checkpoints)
  WHERE used <= ? OR total > ? ORDER BY used LIMIT 256)"""
_VARIABLES = 500
"""Variables of a statement; older versions of SQLite take 999."""
_SIDE_FILES = ("", "-wal", "-shm")

# Primary result codes, https://www.sqlite.org/rescode.html
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO}

_log = logging.getLogger("spillway.store")


class ForeignFileError(Exception):
    """Database that this version must not write to. The text says why."""


def sqlite_path(url: str) -> Path:
    """Return the path in `sqlite:///PATH`; four slashes make it absolute.

    Raises:
        SettingError: there is none.
    """
    path = url.removeprefix("sqlite:///")
    if path == url:
        raise refusal(url, "write sqlite:///PATH, or sqlite:////PATH for an absolute path")
    if path in {"", ":memory:"} or "\0" in path:
        raise refusal(url, "it names no file; memory:// keeps checkpoints in memory")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise refusal(url, "there is no such user") from None


def open_sqlite(url: str, limits: StoreLimits) -> Driver:
    """Open `sqlite:///PATH`; blocks. A lock or a full disk is no reason not to start: both may end.

    Raises:
        SettingError: the file can't be created or written, or is not Spillway's.
    """
    path = sqlite_path(url)
    driver = SqliteDriver(path, limits)
    try:
        driver.open()
    except ForeignFileError as error:
        raise refusal(url, f"{error}; name another file") from None
    except (OSError, sqlite3.Error) as error:
        if _code(error) not in _BUSY and getattr(error, "errno", None) not in _FULL_DISK:
            raise refusal(url, f"can't open {path} for writing: {driver.explain(error)[1]}") from None
    return driver


class SqliteDriver:
    """See `Driver`. A record is committed when `put` returns, and outlives a kill of the process."""

    name = "sqlite"

    def __init__(self, path: Path, limits: StoreLimits) -> None:
        self._path = path
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "spillway-sqlite")
        self._db: sqlite3.Connection | None = None
        self._scopes: set[str] = set()
        """All that hold records: most requests are of others, and need not wait for the thread."""

    def open(self) -> None:
        """Open the file.

        Raises:
            OSError, sqlite3.Error, ForeignFileError: it can't be opened now.
        """
        self._thread.submit(self._execute, lambda _: None).result()

    async def find(self, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """See `Driver.find`."""
        if self._db is not None and scope not in self._scopes:
            return None
        return await self._call(partial(self._find, scope=scope, digests=digests))

    async def put(self, record: StoredRecord) -> None:
        """See `Driver.put`."""
        await self._call(partial(self._put, record=record))

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        await self._call(lambda db: _delete(db, scope, digest))

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        statement = _secret if once else _state
        return await self._call(partial(statement, key=key, new=new))

    async def lease(self, key: str, owner: str, seconds: float) -> bool:
        """See `Driver.lease`. One process serves from a file; several share a Redis."""
        del key, owner, seconds
        return True

    async def export(self) -> list[bytes]:
        """See `Driver.export`."""
        after = self._limits.clock() - self._limits.ttl
        return await self._call(
            lambda db: [body for (body,) in db.execute("SELECT body FROM checkpoints WHERE used > ?", (after,))]
        )

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`. What is deleted is overwritten; a damaged file that was set aside goes too."""
        return await self._call(partial(self._purge, older_than=older_than))

    async def close(self) -> None:
        """See `Driver.close`; folds the write-ahead log into the file."""
        future = self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(future)

    def explain(self, error: Exception) -> tuple[Fault, str]:
        """See `Driver.explain`; SQLite's own messages never quote values."""
        fault = Fault.WRITES if _code(error) in {*_BUSY, sqlite3.SQLITE_READONLY} else Fault.REACH
        if isinstance(error, OSError) and error.strerror:
            return fault, error.strerror.lower()
        known = isinstance(error, (sqlite3.Error, ForeignFileError))
        return fault, str(error) if known else type(error).__name__

    async def _call(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._execute, statement)

    def _execute(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        """Run a statement as one transaction; where the file is damaged, in a new one."""
        try:
            return self._attempt(statement)
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGED:
                raise
            self._set_aside(error)
        return self._attempt(statement)

    def _attempt(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        self._db = self._db or self._connect()
        try:
            with self._db:
                return statement(self._db)
        except sqlite3.DatabaseError as error:
            if _code(error) not in _BUSY:
                self._disconnect()  # the next one starts from the file, not from a connection in doubt
            raise

    def _connect(self) -> sqlite3.Connection:
        make_private(self._path)
        wait = LOCK_SHARE * self._limits.timeout
        db = sqlite3.connect(self._path, timeout=wait, isolation_level="IMMEDIATE")
        try:
            _prepare(db)
            self._scopes = {scope for (scope,) in db.execute("SELECT DISTINCT scope FROM checkpoints")}
        except BaseException:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _set_aside(self, error: Exception) -> None:
        """Rename a damaged file, in place of the one before: it holds what people said, and may be as large as the store."""
        self._disconnect()
        for suffix in _SIDE_FILES:
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").replace(f"{self._path}.damaged{suffix}")
        _log.error("%s is damaged (%s): moved to %s.damaged, and begun anew", self._path, error, self._path)

    def _find(self, db: sqlite3.Connection, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        now, ttl = self._limits.clock(), self._limits.ttl
        for start in range(0, len(digests), _VARIABLES):
            some = digests[start : start + _VARIABLES]
            known = dict[bytes, float](
                db.execute(
                    "SELECT digest, used FROM checkpoints WHERE scope = ? AND used > ? "  # noqa: S608 - only question marks
                    f"AND digest IN ({', '.join('?' * len(some))})",
                    (scope, now - ttl, *some),
                )
            )
            digest = next((each for each in some if each in known), None)
            if digest is None:
                continue
            key = (scope, digest)
            (body,) = db.execute("SELECT body FROM checkpoints WHERE scope = ? AND digest = ?", key).fetchone()
            if abs(now - known[digest]) > min(ttl / 20, 3600.0):  # a find should not cost a write
                with contextlib.suppress(sqlite3.Error), db:
                    db.execute("UPDATE checkpoints SET used = ? WHERE scope = ? AND digest = ?", (now, *key))
            return digest, body
        return None

    def _put(self, db: sqlite3.Connection, record: StoredRecord) -> None:
        now = self._limits.clock()
        self._scopes.add(record.scope)
        _delete(db, record.scope, record.digest)
        row = (record.scope, record.digest, len(record.body), now, record.created, record.body)
        db.execute("INSERT INTO checkpoints (scope, digest, size, used, created, body) VALUES (?, ?, ?, ?, ?, ?)", row)
        total, oldest = db.execute("SELECT sum(size), min(used) FROM checkpoints").fetchone()
        if total > self._limits.max_bytes or oldest <= now - self._limits.ttl:
            db.execute(_EVICT, (now - self._limits.ttl, ROOM_SHARE * self._limits.max_bytes))

    def _purge(self, db: sqlite3.Connection, older_than: float | None) -> int:
        chosen = "" if older_than is None else "WHERE created < ?"
        values = () if older_than is None else (older_than,)
        count = db.execute(f"DELETE FROM checkpoints {chosen}", values).rowcount  # noqa: S608 - one of two constants
        db.commit()
        db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in _SIDE_FILES:
            Path(f"{self._path}.damaged{suffix}").unlink(missing_ok=True)
        return count


def _prepare(db: sqlite3.Connection) -> None:
    """Set the connection up, and the schema in a new file.

    Raises:
        ForeignFileError: the file belongs to something else, or to a newer version.
        sqlite3.Error: it can't be read.
    """
    marked = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not marked and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        msg = "it is the database of another program"
        raise ForeignFileError(msg)
    if version > SCHEMA_VERSION:
        msg = f"it has schema version {version}, written by a newer Spillway; this one knows {SCHEMA_VERSION}"
        raise ForeignFileError(msg)
    db.executescript(_OPEN + ("" if marked else _MARK) + "COMMIT")


def _delete(db: sqlite3.Connection, scope: str, digest: bytes) -> None:
    db.execute("DELETE FROM checkpoints WHERE scope = ? AND digest = ?", (scope, digest))


def _state(db: sqlite3.Connection, key: str, new: bytes | None) -> bytes | None:
    row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    if new is None:
        return bytes(row[0]) if row else None
    if row is None and db.execute("SELECT count(*) FROM state").fetchone()[0] >= MAX_VALUES:
        db.execute("DELETE FROM state")
    db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, new))
    return new


def _secret(db: sqlite3.Connection, key: str, new: bytes | None) -> bytes | None:
    if new is not None:
        db.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", (key, new))
    row = db.execute("SELECT value FROM secrets WHERE name = ?", (key,)).fetchone()
    return bytes(row[0]) if row else None


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def make_private(path: Path) -> None:
    """Create what is missing, folders 0700 and file 0600, and take a file from the eyes of others.

    SQLite gives its side files the mode of the database.

    Raises:
        OSError: it can't be created or written.
    """
    for folder in reversed([folder for folder in path.parents if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in _SIDE_FILES:
        side = Path(f"{path}{suffix}")
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's, that we may write to
            side.chmod(0o600)
