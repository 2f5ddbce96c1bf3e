"""Checkpoints in a SQLite file: one thread does all that touches the disk, an index in memory answers misses."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store import sqlite_rows as rows
from proxy.store.claims import LocalClaims
from proxy.store.codec import decode, encode_or_drop
from proxy.store.ledger import Entry, Key, Ledger
from proxy.store.opening import BULK_TIMEOUT, StoreLimits, refusal
from proxy.store.sqlite_file import SqliteFile, describe
from proxy.store.sqlite_thread import SqliteThread

LOOK_EVERY = 2.0
"""Seconds between two looks at whether another process has written to the file."""


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
    store = SqliteStore(SqliteFile(path, clock=limits.clock, wait=limits.timeout), limits)
    try:
        store.start()
    except rows.NotOurs as error:
        raise refusal(url, f"{error}; name another file") from None
    except (OSError, sqlite3.Error) as error:
        raise refusal(url, f"can't open {path} for writing: {describe(error)}") from None
    return store


class SqliteStore(LocalClaims):
    """See `CheckpointStore`.

    A put returns when it is queued, not when it is written. The thread works in order, so what was put
    before a `find` of something stored, `get_state`, `stats`, `export`, `purge` or `close` is committed when
    that returns, and outlives a kill of the process (a power cut may take what came after the write-ahead
    log was last folded in: `synchronous=NORMAL`).

    Claims hold within this process. Processes that share the file see each other's checkpoints within
    seconds, which covers a restart that overlaps; for replicas there is Redis.
    """

    def __init__(self, file: SqliteFile, limits: StoreLimits) -> None:
        super().__init__(limits.clock)
        self._ttl = limits.ttl
        self._max_bytes = limits.max_bytes
        self._ledger = Ledger(ttl=limits.ttl, max_bytes=limits.max_bytes)
        self._pending: dict[Key, Entry] = {}
        self._thread = SqliteThread(file, timeout=limits.timeout)
        self._grain = min(limits.ttl / 20, 3600.0)
        self._version = 0
        self._looked = -math.inf
        self._stale = False

    def start(self) -> None:
        """Open the file and read its keys; blocks, so it belongs before the event loop serves anything.

        A file that is locked or a disk that is full is no reason not to start: it is tried again later.

        Raises:
            OSError, sqlite3.Error, NotOurs: it can never work.
        """
        self._hold(self._thread.start(rows.load))

    @property
    def healthy(self) -> bool:
        """See `StoreAdmin.healthy`."""
        return self._thread.healthy

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`. For a scope that holds nothing the thread is not asked."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        if self._stale:
            self._reload()
        if scope not in self._ledger:
            return None
        while (digest := self._ledger.first(scope, digests, self._clock())) is not None:
            found = await self._thread.ask(partial(rows.read, scope=scope, digest=digest))
            if found is None:
                return None
            checkpoint = decode(found[0], scope, digest) if found else None
            if checkpoint is not None:
                self._use((scope, digest))
                return checkpoint
            self._ledger.drop((scope, digest))  # purged by another process, or unreadable
        return None

    async def put(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.put`. Queued; dropped when the queue is full or the disk takes nothing."""
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is None or not self._thread.ready_to_write:
            return
        now, key = self._clock(), (checkpoint.scope, checkpoint.digest)
        entry, gone = self._ledger.add(key, len(body), now)
        self._pending[key] = entry
        row = rows.Row(scope=key[0], digest=key[1], used=now, created=checkpoint.created, body=body)
        self._thread.post(partial(rows.write, row=row, gone=gone), partial(self._written, key, entry))

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        return await self._thread.ask(partial(rows.get_state, key=key))

    async def put_state(self, key: str, value: bytes) -> None:
        """See `LearnedState.put_state`. Queued."""
        self._thread.post(partial(rows.put_state, key=key, value=bytes(value)))

    async def stats(self) -> StoreStats:
        """See `StoreAdmin.stats`."""
        self._save_uses()
        used_after = self._clock() - self._ttl
        counted = await self._thread.ask(partial(rows.stats, used_after=used_after), seconds=BULK_TIMEOUT)
        return counted or StoreStats(0, 0, None)

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`. What is deleted is overwritten in the file."""
        before = math.inf if older_than is None else older_than
        statement = partial(rows.purge, created_before=before)
        count = await self._thread.ask(statement, seconds=BULK_TIMEOUT, write=True)
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
        self._save_uses()
        await self._thread.close()

    def _written(self, key: Key, entry: Entry, count: int | None) -> None:
        if self._pending.get(key) is not entry:
            return  # a later put of the same key is under way
        del self._pending[key]
        if (
            count is None
        ):  # what the disk still has, an older one of this key for instance, only the disk knows
            self._ledger.drop(key)
            self._stale = True

    def _use(self, key: Key) -> None:
        # The disk learns of a use only when what it has is well out of date: a find should not cost a write.
        now = self._clock()
        entry = self._ledger.use(key, now)
        if entry is not None and now - entry.saved > self._grain:
            entry.saved = now
            self._thread.post(partial(rows.touch, uses=[(now, *key)]))

    def _save_uses(self) -> None:
        uses = [(entry.used, *key) for key, entry in self._ledger if entry.used > entry.saved]
        for _, entry in self._ledger:
            entry.saved = entry.used
        if uses:
            self._thread.post(partial(rows.touch, uses=uses))

    def _look(self) -> None:
        self._looked = time.monotonic()
        gone = self._ledger.expire(self._clock())
        self._thread.post(partial(rows.sweep, gone=gone), self._seen, write=bool(gone))

    def _seen(self, version: int | None) -> None:
        self._stale = self._stale or version not in {None, self._version}

    def _reload(self) -> None:
        self._stale = False  # at once, so that one of many requests reloads, and none waits for it
        self._thread.post(rows.load, self._hold, write=False)

    def _hold(self, loaded: tuple[int, list[tuple[Key, Entry]]] | None) -> None:
        if loaded is None:
            self._stale = True
            return
        self._version, keys = loaded
        self._ledger.replace([*keys, *self._pending.items()])
