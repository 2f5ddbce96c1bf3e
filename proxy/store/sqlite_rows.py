"""The schema of the SQLite store and its statements. Everything here blocks: for the store's own thread."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence

from proxy.history.checkpoint import StoreStats
from proxy.store.ledger import Entry, Key
from proxy.store.memory import Encoded
from proxy.store.opening import MOST_STATES

APPLICATION_ID = 0x5350_4C57
"""Marks the file as Spillway's (`PRAGMA application_id`): "SPLW"."""
SCHEMA_VERSION = 1

_SCHEMA = (
    """CREATE TABLE checkpoints (scope TEXT NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
       used REAL NOT NULL, created REAL NOT NULL, body BLOB NOT NULL)""",
    # Serves the look-up and, as it covers them, the reading of all keys without the bodies.
    "CREATE INDEX held ON checkpoints (scope, digest, size, used)",
    "CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)


_VARIABLES = 500
"""Of a statement; older versions of SQLite take 999."""
_PROBED = 65536
"""Bytes written at least to see whether the disk takes any."""


class NotOurs(Exception):
    """The file is a database, and none that this version may write to. The text says why."""


class WrongSchema(Exception):
    """The file is marked as Spillway's, and is not what its version says."""


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled it back already
            db.execute("ROLLBACK")
        raise


def prepare(db: sqlite3.Connection) -> None:
    """Set the connection up, and the schema in a new file.

    Raises:
        NotOurs: the file belongs to something else, or to a newer version.
        WrongSchema: a table or a column of it is missing.
        sqlite3.Error: it can't be read.
    """
    marked = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    version = db.execute("PRAGMA user_version").fetchone()[0]
    fresh = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not marked and not fresh:
        msg = "it is the database of another program"
        raise NotOurs(msg)
    if version > SCHEMA_VERSION:
        msg = f"it has schema version {version}, written by a newer Spillway; this one knows {SCHEMA_VERSION}"
        raise NotOurs(msg)
    db.text_factory = _text
    if fresh:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible before the first page is written
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA journal_size_limit = 16777216")
    db.execute("PRAGMA secure_delete = ON")  # what is purged is overwritten: these are people's conversations
    if fresh:
        _create(db)
    try:
        db.execute("SELECT scope, digest, size, used, created, body FROM checkpoints LIMIT 0")
        db.execute("SELECT key, value FROM state LIMIT 0")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise WrongSchema(str(error)) from None
        raise


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # one bad row must not keep the others from being read


def _create(db: sqlite3.Connection) -> None:
    with transaction(db):
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return  # another process was faster
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def load(db: sqlite3.Connection) -> tuple[int, list[tuple[Key, Entry]]]:
    """The data version, then all keys."""
    version = data_version(db)
    rows = db.execute("""SELECT scope, digest, size, used FROM checkpoints
        WHERE typeof(digest) = 'blob' AND typeof(size) = 'integer' AND typeof(used) = 'real'""")
    return version, [((scope, digest), Entry(size, used, used)) for scope, digest, size, used in rows]


def data_version(db: sqlite3.Connection) -> int:
    """A number that changes when another connection has written to the file."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])


def read(db: sqlite3.Connection, scope: str, digest: bytes) -> list[bytes]:
    """The body, in a list; an empty list when there is none."""
    rows = db.execute("SELECT body FROM checkpoints WHERE scope = ? AND digest = ?", (scope, digest))
    return [body for (body,) in rows]


def write(db: sqlite3.Connection, item: Encoded, used: float, gone: Sequence[Key]) -> int:
    """Insert or replace one, used at that time, and delete those that go for it; returns how many were inserted."""
    with transaction(db):
        _delete(db, [*gone, item.key])
        return db.execute(
            "INSERT INTO checkpoints (scope, digest, size, used, created, body) VALUES (?, ?, ?, ?, ?, ?)",
            (*item.key, len(item.body), used, item.created, item.body),
        ).rowcount


def sweep(db: sqlite3.Connection, gone: Sequence[Key]) -> int:
    """Delete what has expired; returns the data version."""
    if gone:
        with transaction(db):
            _delete(db, gone)
    return data_version(db)


def _delete(db: sqlite3.Connection, keys: Sequence[Key]) -> None:
    db.executemany("DELETE FROM checkpoints WHERE scope = ? AND digest = ?", keys)


def touch(db: sqlite3.Connection, uses: Sequence[tuple[float, str, bytes]]) -> int:
    """Note last uses, each (seconds since the epoch, scope, digest); returns how many were still there."""
    with transaction(db):
        return db.executemany("UPDATE checkpoints SET used = ? WHERE scope = ? AND digest = ?", uses).rowcount


def get_state(db: sqlite3.Connection, key: str) -> bytes | None:
    """A learned value."""
    row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return bytes(row[0]) if row else None


def put_state(db: sqlite3.Connection, key: str, value: bytes) -> int:
    """Keep a learned value; returns how many were written. One too many, and the others go."""
    known = db.execute("SELECT 1 FROM state WHERE key = ?", (key,)).fetchone()
    if known is None and db.execute("SELECT count(*) FROM state").fetchone()[0] >= MOST_STATES:
        db.execute("DELETE FROM state")
    return db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, value)).rowcount


def secret(db: sqlite3.Connection, name: str) -> bytes | None:
    """A secret; None if there is none of that name."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'secrets'").fetchone():
        return None
    row = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
    return bytes(row[0]) if row else None


def make_secret(db: sqlite3.Connection, name: str, fresh: bytes) -> bytes | None:
    """The secret of that name, which is `fresh` if there was none.

    Its table is made when it is first needed: files of older versions lack it, and they read a file that has it.
    """
    with transaction(db):
        db.execute(
            "CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
        )
        db.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", (name, bytes(fresh)))
    return secret(db, name)


def try_to_write(db: sqlite3.Connection) -> bool:
    """See whether a write would be let in; returns True."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")
    return True


def probe(db: sqlite3.Connection, size: int) -> bool:
    """Write so many bytes, and take them away again; returns True."""
    with transaction(db):
        db.execute(
            "INSERT OR REPLACE INTO state (key, value) VALUES ('probe', zeroblob(?))", (max(size, _PROBED),)
        )
    db.execute("DELETE FROM state WHERE key = 'probe'")
    return True


def stats(db: sqlite3.Connection, used_after: float) -> StoreStats:
    """Count what was used later than that."""
    row = db.execute(
        "SELECT count(*), coalesce(sum(size), 0), min(created) FROM checkpoints WHERE used > ?", (used_after,)
    ).fetchone()
    return StoreStats(*row)


def bodies(db: sqlite3.Connection, used_after: float) -> list[bytes]:
    """What was used later than that, in the order of making."""
    rows = db.execute("SELECT body FROM checkpoints WHERE used > ? ORDER BY created, rowid", (used_after,))
    return [body for (body,) in rows]


def purge(db: sqlite3.Connection, created_before: float) -> int:
    """Delete, give the space back, and leave nothing in the write-ahead log; returns how many."""
    with transaction(db):
        count = db.execute("DELETE FROM checkpoints WHERE created < ?", (created_before,)).rowcount
    db.executescript("PRAGMA incremental_vacuum")  # steps through to the end; execute would free one page
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count
