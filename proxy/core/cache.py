"""A cache that is bounded by the size of what it holds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """Values up to a total size, in units of the caller's; the least recently used go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used now."""
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value of this size, in place of an earlier one."""
        _, before = self._entries.pop(key, (None, 0))
        self._entries[key] = (value, size)
        self.size += size - before
        while self.size > self._limit:
            _, (_, gone) = self._entries.popitem(last=False)
            self.size -= gone
