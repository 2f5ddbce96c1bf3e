"""Caches of what requests leave behind for later ones. They share one bound in bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 300
"""Bytes that an entry takes besides its value: a key of a digest or two, and its place in the order of use."""


class CacheMemory:
    """Bytes that caches take together. While that is too much, the largest of them drops what it used least recently.

    So each may have what the others leave, and a flood in one costs the others nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.lock = RLock()
        self.caches: list[Cache[Any, Any]] = []


class Cache(Generic[K, V]):
    """Values of one kind. Usable from threads."""

    def __init__(self, memory: CacheMemory, *, dropped: Callable[[V], None] | None = None) -> None:
        """`dropped` is called with each value that has to go, from any thread."""
        self._memory, self._dropped = memory, dropped
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0
        memory.caches.append(self)

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used now."""
        if (entry := self._entries.get(key)) is None:
            return None
        try:  # noqa: SIM105 - long histories look for thousands, so there is no lock either
            self._entries.move_to_end(key)
        except KeyError:  # another thread has dropped it since
            pass
        return entry[0]

    def put(self, key: K, value: V, size: int) -> V:
        """Store a value of about so many bytes, in place of an earlier one, and return it."""
        size += ENTRY_BYTES
        memory = self._memory
        with memory.lock:
            _, before = self._entries.pop(key, (None, 0))
            self._entries[key] = value, size
            self.size += size - before
            memory.size += size - before
            while memory.size > memory.limit:
                max(memory.caches, key=lambda cache: cache.size).drop_oldest()
        return value

    def remove(self, key: K) -> None:
        """Remove a value, if it is there."""
        with self._memory.lock:
            _, size = self._entries.pop(key, (None, 0))
            self.size -= size
            self._memory.size -= size

    def clear(self) -> None:
        """Remove all values."""
        for key in [*self._entries]:
            self.remove(key)

    def drop_oldest(self) -> None:
        """Drop the value that was used least recently; the lock is held."""
        key, (value, _) = next(iter(self._entries.items()))
        self.remove(key)
        if self._dropped is not None:
            self._dropped(value)
