"""The file of the SQLite store: made private, opened, reopened, moved aside when it is damaged. All of it blocks."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from proxy.store import sqlite_rows as rows
from proxy.store.breaker import Fault

T = TypeVar("T")

_REFUSED = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_REFUSED_IO = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_RECORD = {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_PASSING_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}
_SIDE_FILES = ("", "-wal", "-shm")
PRIVATE = 0o600
PRIVATE_FOLDER = 0o700

_log = logging.getLogger("spillway.store")


class Overtaken(Exception):
    """A write before this one has shown that none is taken; each would wait for the same lock in vain."""


def _code(error: Exception) -> int:
    # The primary result code, https://www.sqlite.org/rescode.html; 0 for what is not SQLite's.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def describe(error: Exception) -> str:
    """A few words for the log; SQLite's own messages never quote values."""
    if isinstance(error, (sqlite3.Error, rows.NotOurs)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__


def judge(error: Exception) -> Fault:
    """What an error says of the file. One that is not SQLite's or the system's comes from the values of a row."""
    code = _code(error)
    if (
        isinstance(error, Overtaken)
        or code in _REFUSED
        or getattr(error, "sqlite_errorcode", 0) in _REFUSED_IO
    ):
        return Fault.WRITES
    if code in _RECORD or isinstance(
        error, (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.DataError)
    ):
        return Fault.RECORD
    return Fault.REACH


def passing(error: Exception) -> bool:
    """Whether what keeps the file from being opened may end by itself: a lock, a full disk."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return error.errno in _PASSING_ERRNO
    return isinstance(error, TimeoutError) or _code(error) in _PASSING


class SqliteFile:
    """One connection, for one thread, opened when it is first needed, and again after a failure or a deletion.

    `opened` counts how often.
    """

    def __init__(self, path: Path, *, wait: float) -> None:
        """Take what is needed to open it; nothing is touched yet.

        Args:
            path: of the database.
            wait: seconds to wait for another process's lock.
        """
        self.path = path
        self.opened = 0
        self._wait = wait
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def run(self, statement: Callable[[sqlite3.Connection], T], *, look: bool = True) -> T:
        """Run a statement; on a damaged file begin a new one and run it there.

        `look`: whether the path still leads to the file that is open. A read can do without: what it finds was there.

        Raises:
            OSError, sqlite3.Error: it can't be done now.
            NotOurs: see `sqlite_rows.prepare`.
        """
        if look and self._db is not None and self._identity != _identity(self.path):
            _log.warning("%s was deleted or replaced while it was open: opened anew", self.path)
            self.close()
        try:
            return self._tried(statement)
        except (sqlite3.DatabaseError, rows.WrongSchema) as error:
            if isinstance(error, sqlite3.DatabaseError) and _code(error) not in _DAMAGED:
                raise
            self._set_aside(error)
        return self._tried(statement)

    def forget_damaged(self) -> None:
        """Delete what was set aside."""
        for suffix in _SIDE_FILES:
            Path(f"{self._aside}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the connection; the last one to do so folds the write-ahead log into the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def _aside(self) -> str:
        return f"{self.path}.damaged"

    def _tried(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            self._db = self._connect()
        try:
            return statement(self._db)
        except sqlite3.DatabaseError as error:
            if judge(error) is Fault.REACH or _code(error) == sqlite3.SQLITE_READONLY:
                self.close()  # the next one starts from the file, not from a connection in doubt
            raise

    def _connect(self) -> sqlite3.Connection:
        make_private(self.path)
        self._identity = _identity(self.path)
        db = sqlite3.connect(self.path, timeout=self._wait, isolation_level=None)
        try:
            rows.prepare(db)
        except BaseException:
            db.close()
            raise
        self.opened += 1
        return db

    def _set_aside(self, error: Exception) -> None:
        self.close()
        if self._identity != _identity(self.path):
            return  # another process was faster, and what is there now is its new one
        # One, the latest: it holds what people said, and may be as large as the store.
        for suffix in _SIDE_FILES:
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").replace(f"{self._aside}{suffix}")
        _log.error("%s is damaged (%s): moved to %s, and begun anew", self.path, error, self._aside)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None where there is none."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino


def make_private(path: Path) -> None:
    """Create what is missing, folders 0700 and file 0600, and take a file from the eyes of others.

    SQLite gives its side files the mode of the database.

    Raises:
        OSError: it can't be created or written.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))
    for suffix in _SIDE_FILES:
        side = Path(f"{path}{suffix}")
        if side.exists() and side.stat().st_mode & 0o077:
            with contextlib.suppress(
                PermissionError
            ):  # another user's file that we may write to all the same
                side.chmod(PRIVATE)
