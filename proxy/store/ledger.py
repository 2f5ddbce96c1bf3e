"""Which checkpoints a store holds, without their contents: for look-ups, expiry and the size cap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from proxy.store.opening import StoreLimits

JUMP = 60.0
"""Seconds by which the clock may differ from the time that has passed before it counts as set."""

MOST_AT_ONCE = 256
"""Checkpoints that go at one time: deleting holds up whoever wants to read."""

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
    """Keys in the order of their last use. Not for use from several threads.

    A clock that is set while this runs takes the last uses with it: what is unused, not what the clock did, ends
    a checkpoint.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self.bytes = 0
        self._ttl = limits.ttl
        self._max_bytes = limits.max_bytes
        self._clock = limits.clock
        self._steady = limits.steady
        self._began = limits.clock() - limits.steady()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._scopes: dict[str, set[bytes]] = {}

    def now(self) -> float:
        """Seconds since the epoch."""
        now = self._clock()
        jump = now - self._steady() - self._began
        if abs(jump) > JUMP:
            self._began += jump
            for entry in self._entries.values():
                entry.used += jump
        return now

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, scope: str) -> bool:
        return scope in self._scopes

    def __iter__(self) -> Iterator[tuple[Key, Entry]]:
        """All that is held, longest unused first, expired ones too."""
        return iter(self._entries.items())

    def first(self, scope: str, digests: Sequence[bytes]) -> bytes | None:
        """The first of `digests` that is held and not expired."""
        held = self._scopes.get(scope)
        if held is None:
            return None
        after = self.now() - self._ttl
        for digest in digests:
            if digest in held and self._live((scope, digest), after):
                return digest
        return None

    def live(self, key: Key) -> bool:
        """Whether it is held and was used less than the TTL ago."""
        return self._live(key, self.now() - self._ttl)

    def use(self, key: Key) -> Entry | None:
        """Note a use, if it is held."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = self.now()
            self._entries.move_to_end(key)
        return entry

    def add(self, key: Key, size: int) -> tuple[Entry, list[Key]]:
        """Enter it as used now.

        Returns:
            its entry, and what had to go for it: expired, or longest unused above the cap.
        """
        self.drop(key)
        now = self.now()
        entry = Entry(size, now, now)
        self._insert(key, entry)
        return entry, self._clear(keep=key)

    def expire(self) -> list[Key]:
        """Forget what has expired, some at a time, and return it."""
        return self._clear(keep=None)

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
        """Hold these instead; a use that is noted here and later than theirs counts, one of the future is of now."""
        now, fresh = self.now(), dict(rows)
        for key in self._entries.keys() - fresh.keys():
            self.drop(key)
        for key, entry in fresh.items():
            known = self._entries.get(key)
            if known is not None and known.size == entry.size and known.used >= entry.used:
                continue
            entry.used = min(now, max(entry.used, known.used if known is not None else entry.used))
            self.drop(key)
            self._insert(key, entry)
        self._entries = OrderedDict(sorted(self._entries.items(), key=_last_use))

    def _live(self, key: Key, after: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.used > after

    def _clear(self, keep: Key | None) -> list[Key]:
        gone: list[Key] = []
        after = self.now() - self._ttl
        while self._entries and len(gone) < MOST_AT_ONCE:
            oldest = next(iter(self._entries))
            if oldest == keep or (self.bytes <= self._max_bytes and self._live(oldest, after)):
                break
            self.drop(oldest)
            gone.append(oldest)
        return gone

    def _insert(self, key: Key, entry: Entry) -> None:
        self._entries[key] = entry
        self.bytes += entry.size
        if (held := self._scopes.get(key[0])) is not None:
            held.add(key[1])
        else:
            self._scopes[key[0]] = {key[1]}
