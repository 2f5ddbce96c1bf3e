"""Which checkpoints a store holds, without their contents: for look-ups, expiry and the size cap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[str, bytes]
"""Scope and digest."""


@dataclass(slots=True)
class Entry:
    """Bytes it takes, last use (seconds since the epoch), and the last use that is on disk."""

    size: int
    used: float
    saved: float


def _last_use(item: tuple[Key, Entry]) -> float:
    return item[1].used


class Ledger:
    """Keys in the order of their last use. Not for use from several threads."""

    def __init__(self, *, ttl: float, max_bytes: int) -> None:
        self.bytes = 0
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._scopes: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, scope: str) -> bool:
        return scope in self._scopes

    def __iter__(self) -> Iterator[tuple[Key, Entry]]:
        """All that is held, longest unused first, expired ones too."""
        return iter(self._entries.items())

    def first(self, scope: str, digests: Sequence[bytes], now: float) -> bytes | None:
        """The first of `digests` that is held and not expired."""
        held = self._scopes.get(scope)
        if held is None:
            return None
        return next(
            (digest for digest in digests if digest in held and self.live((scope, digest), now)), None
        )

    def live(self, key: Key, now: float) -> bool:
        """Whether it is held and was used less than the TTL ago."""
        entry = self._entries.get(key)
        return entry is not None and entry.used > now - self._ttl

    def use(self, key: Key, now: float) -> Entry | None:
        """Note a use, if it is held."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = now
            self._entries.move_to_end(key)
        return entry

    def add(self, key: Key, size: int, now: float) -> tuple[Entry, list[Key]]:
        """Enter it as used now.

        Returns:
            its entry, and what had to go for it: expired, or longest unused above the cap.
        """
        self.drop(key)
        entry = Entry(size, now, now)
        self._insert(key, entry)
        return entry, self._clear(now, keep=key)

    def expire(self, now: float) -> list[Key]:
        """Forget what has expired, and return it."""
        return self._clear(now, keep=None)

    def drop(self, key: Key) -> None:
        """Forget it, if it is held."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.bytes -= entry.size
        scope, digest = key
        self._scopes[scope].discard(digest)
        if not self._scopes[scope]:
            del self._scopes[scope]

    def replace(self, rows: Iterable[tuple[Key, Entry]]) -> None:
        """Hold these instead; a use that is noted here and later than theirs counts."""
        fresh = dict(rows)
        for key in self._entries.keys() - fresh.keys():
            self.drop(key)
        for key, entry in fresh.items():
            known = self._entries.get(key)
            if known is not None and known.size == entry.size and known.used >= entry.used:
                continue
            entry.used = max(entry.used, known.used if known is not None else entry.used)
            self.drop(key)
            self._insert(key, entry)
        self._entries = OrderedDict(sorted(self._entries.items(), key=_last_use))

    def _clear(self, now: float, keep: Key | None) -> list[Key]:
        gone = []
        while self._entries and (oldest := next(iter(self._entries))) != keep and self._must_go(oldest, now):
            self.drop(oldest)
            gone.append(oldest)
        return gone

    def _must_go(self, key: Key, now: float) -> bool:
        return self.bytes > self._max_bytes or not self.live(key, now)

    def _insert(self, key: Key, entry: Entry) -> None:
        self._entries[key] = entry
        self.bytes += entry.size
        if (held := self._scopes.get(key[0])) is not None:
            held.add(key[1])
        else:
            self._scopes[key[0]] = {key[1]}
