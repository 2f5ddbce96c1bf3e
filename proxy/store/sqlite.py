"""Checkpoints in a SQLite file: one thread does all that touches the disk, an index in memory answers misses."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store import sqlite_rows as rows
from proxy.store.claims import LocalClaims
from proxy.store.codec import decode, encode_or_drop
from proxy.store.ledger import Entry, Key, Ledger
from proxy.store.memory import Encoded, Shelf
from proxy.store.opening import BULK_TIMEOUT, StoreLimits, refusal
from proxy.store.sqlite_file import SqliteFile, describe
from proxy.store.sqlite_thread import SqliteThread

LOOK_EVERY = 2.0
"""Seconds between two looks at whether another process has written to the file, and what it would not take can go."""

LOCK_SHARE = 0.2
"""Of the time that an operation may take, what a write waits for another process's lock: reads wait behind it."""


def sqlite_path(url: str) -> Path:
    """The path in `sqlite:///PATH`; four slashes make it absolute.

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


def open_sqlite(url: str, limits: StoreLimits) -> CheckpointStore:
    """Open `sqlite:///PATH`. Blocks until the keys are read.

    Raises:
        SettingError: the file can't be created, written or used.
    """
    path = sqlite_path(url)
    store = SqliteStore(SqliteFile(path, wait=LOCK_SHARE * limits.timeout), limits)
    try:
        store.start()
    except rows.NotOurs as error:
        raise refusal(url, f"{error}; name another file") from None
    except (OSError, sqlite3.Error) as error:
        raise refusal(url, f"can't open {path} for writing: {describe(error)}") from None
    return store


class SqliteStore(LocalClaims):
    """See `CheckpointStore`.

    A put returns when it is queued, not when it is written: until then it is kept, and found, in memory, also where
    the disk does not take it now. The thread works in order, so what was put before a `find` of something stored,
    `get_state`, `stats`, `export`, `purge` or `close` is committed when that returns, and outlives a kill of the
    process (a power cut may take what came after the write-ahead log was last folded in: `synchronous=NORMAL`).

    Claims are this process' own. Another process on the same file sees checkpoints within seconds, which covers a
    restart that overlaps; several that serve share a Redis.
    """

    def __init__(self, file: SqliteFile, limits: StoreLimits) -> None:
        thread = SqliteThread(file, timeout=limits.timeout)
        super().__init__(limits.steady)
        self._clock = limits.clock
        self._ttl = limits.ttl
        self._max_bytes = limits.max_bytes
        self._ledger = Ledger(limits)
        self._kept = Shelf(limits.shelter())
        self._pending: dict[Key, Entry] = {}
        self._file = file
        self._thread = thread
        self._grain = min(limits.ttl / 20, 3600.0)
        self._version = (0, 0)
        self._looked = self._saved = -math.inf
        self._stale = False
        self._unread = 0

    def start(self) -> None:
        """Open the file and read its keys; blocks, so it belongs before the event loop serves anything.

        A file that is locked or a disk that is full is no reason not to start: it is tried again later.

        Raises:
            OSError, sqlite3.Error, NotOurs: it can never work.
        """
        self._hold(self._thread.start(self._load))

    @property
    def healthy(self) -> bool:
        """See `StoreAdmin.healthy`."""
        return self._thread.guard.healthy

    @property
    def skipped(self) -> int:
        """See `StoreAdmin.skipped`."""
        return self._thread.guard.skipped + self._unread

    async def check(self) -> str:
        """See `StoreAdmin.check`."""
        guard = self._thread.guard
        largest = max((len(item.body) for item in self._kept), default=0)
        statement = rows.try_to_write if guard.writable else partial(rows.probe, size=largest)
        await self._thread.ask(statement, write=True)
        self._retry()
        return guard.state

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`. For a scope that holds nothing the thread is not asked."""
        if self._steady() - self._looked > LOOK_EVERY:
            self._look()
        if self._stale:
            self._reload()
        scope = _storable(scope)
        kept = self._kept.find(scope, digests) if self._kept else None
        while (digest := self._ledger.first(scope, digests)) is not None:
            if kept is not None and digests.index(kept.digest) <= digests.index(digest):
                break
            found = await self._thread.ask(partial(rows.read, scope=scope, digest=digest))
            if found is None:
                break
            checkpoint = decode(found[0], scope, digest) if found else None
            if checkpoint is not None:
                self._use((scope, digest))
                return checkpoint
            self._unread += len(found)
            self._ledger.drop((scope, digest))  # purged by another process, or unreadable
        if kept is not None:
            self._use((scope, kept.digest))
        return kept

    async def put(self, checkpoint: Checkpoint) -> bool:
        """See `Checkpoints.put`. Queued."""
        checkpoint = replace(checkpoint, scope=_storable(checkpoint.scope))
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is None:
            return False
        item = Encoded((checkpoint.scope, checkpoint.digest), body, checkpoint.created)
        self._kept.put(item)
        if self._thread.guard.ready_to_write:
            self._write(item)
        return True

    async def drop(self, scope: str, digest: bytes) -> bool:
        """See `Checkpoints.drop`."""
        key = (_storable(scope), digest)
        self._pending.pop(key, None)
        self._kept.drop(key)
        self._ledger.drop(key)
        dropped = False
        try:
            dropped = await self._thread.ask(partial(rows.sweep, gone=[key]), write=True) is not None
        finally:
            self._stale = self._stale or not dropped  # what the disk still has only the disk knows
        return dropped

    async def secret(self, name: str, fresh: bytes) -> bytes | None:
        """See `Secrets.secret`. One that is there can be told though the disk is full."""
        known = await self._thread.ask(partial(rows.secret, name=name))
        return known or await self._thread.ask(partial(rows.make_secret, name=name, fresh=fresh), write=True)

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        return await self._thread.ask(partial(rows.get_state, key=_storable(key)))

    async def put_state(self, key: str, value: bytes) -> None:
        """See `LearnedState.put_state`. Queued."""
        self._thread.post(partial(rows.put_state, key=_storable(key), value=bytes(value)))

    async def stats(self) -> StoreStats:
        """See `StoreAdmin.stats`."""
        self._save_uses()
        used_after = self._clock() - self._ttl
        counted = await self._thread.ask(partial(rows.stats, used_after=used_after), seconds=BULK_TIMEOUT)
        return counted or StoreStats(0, 0, None)

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`. What is deleted is overwritten in the file; damaged files that were set aside go too."""
        if older_than is None:
            self._kept.clear()
        before = math.inf if older_than is None else older_than
        statement = partial(rows.purge, created_before=before)
        count = await self._thread.ask(statement, seconds=BULK_TIMEOUT, write=True)
        await self._thread.ask(lambda _: self._file.forget_damaged())
        self._stale = True
        return count or 0

    async def export(self) -> list[Checkpoint]:
        """See `StoreAdmin.export`."""
        self._save_uses()
        used_after = self._clock() - self._ttl
        bodies = await self._thread.ask(partial(rows.bodies, used_after=used_after), seconds=BULK_TIMEOUT)
        return [item for item in map(decode, bodies or []) if item is not None]

    async def close(self) -> None:
        """See `StoreAdmin.close`."""
        self._retry()
        self._save_uses()
        await self._thread.close()

    def _write(self, item: Encoded) -> None:
        entry, gone = self._ledger.add(item.key, len(item.body))
        self._forget(gone)
        self._pending[item.key] = entry
        statement = partial(rows.write, item=item, used=entry.used, gone=gone)
        self._thread.post(statement, partial(self._written, item.key, entry))

    def _forget(self, gone: Sequence[Key]) -> None:
        for key in gone:
            self._kept.drop(key)

    def _written(self, key: Key, entry: Entry, count: int | None) -> None:
        if self._pending.get(key) is not entry:
            return  # a later put of the same key is under way
        del self._pending[key]
        if count is not None:
            self._kept.drop(key)
            return
        # What the disk still has, an older one of this key for instance, only the disk knows.
        self._ledger.drop(key)
        self._stale = True
        if self.healthy:
            self._kept.drop(key)  # it is the record that is at fault

    def _retry(self) -> None:
        """Write what could not be written before; while the disk is in doubt, one to see."""
        for item in self._kept:
            if not self._thread.guard.ready_to_write:
                break
            if item.key not in self._pending:
                self._write(item)

    def _use(self, key: Key) -> None:
        # The disk learns of a use only when what it has is well out of date: a find should not cost a write.
        entry = self._ledger.use(key)
        if entry is not None and abs(entry.used - entry.saved) > self._grain:
            entry.saved = entry.used
            self._thread.post(partial(rows.touch, uses=[(entry.used, *key)]))

    def _save_uses(self, off: float = 0.0) -> None:
        """Write last uses where those on disk are off by more seconds: from before a reload, or a clock that was set."""
        uses = [(entry.used, *key) for key, entry in self._ledger if abs(entry.used - entry.saved) > off]
        for _, entry in self._ledger:
            if abs(entry.used - entry.saved) > off:
                entry.saved = entry.used
        if uses:
            self._thread.post(partial(rows.touch, uses=uses))

    def _look(self) -> None:
        self._looked = self._steady()
        if self._looked - self._saved > self._grain:
            self._saved = self._looked
            self._save_uses(self._grain)
        if self._kept:
            self._retry()
        gone = self._ledger.expire()
        self._forget(gone)
        self._thread.post(partial(self._clean, gone), self._seen, write=bool(gone))

    def _clean(self, gone: Sequence[Key], db: sqlite3.Connection) -> tuple[int, int]:
        return self._file.opened, rows.sweep(db, gone)

    def _seen(self, version: tuple[int, int] | None) -> None:
        self._stale = self._stale or version not in {None, self._version}

    def _reload(self) -> None:
        self._stale = False  # at once, so that one of many requests reloads, and none waits for it
        self._thread.post(self._load, self._hold, write=False)

    def _load(self, db: sqlite3.Connection) -> tuple[tuple[int, int], list[tuple[Key, Entry]]]:
        version, keys = rows.load(db)
        return (self._file.opened, version), keys

    def _hold(self, loaded: tuple[tuple[int, int], list[tuple[Key, Entry]]] | None) -> None:
        if loaded is None:
            self._stale = True
            return
        self._version, keys = loaded
        self._ledger.replace([*keys, *self._pending.items()])


def _storable(text: str) -> str:
    """A text that SQLite takes: half of an emoji, which UTF-8 does not have, is written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
