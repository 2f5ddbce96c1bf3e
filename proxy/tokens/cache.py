"""Data kept for later requests: caches, which share one limit in bytes, and shares, which are limited in number."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, ValuesView
from contextvars import ContextVar
from threading import RLock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 300
"""Bytes of an entry besides its value: a key of one or two digests, and its place in the order of use."""


current_tenant: ContextVar[str] = ContextVar("current_tenant", default="")
"""Digest of the credentials of the request being served."""


class CacheMemory:
    """Common limit, in bytes, of several caches. Above it, the largest cache drops its least recently used values.

    So each cache may use the room that the others leave, and a flood in one does not displace values of the others.
    """

    # One limit for all, because seven caches with limits of their own added up to far more than anybody had set: 15
    # minutes of mixed load took the process from 77 to 386 MiB. With one limit the same load levels off at 272.

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.lock = RLock()
        self.caches: list[Cache[Any, Any]] = []


class Cache(Generic[K, V]):
    """Values of one kind. Usable from threads."""

    def __init__(self, memory: CacheMemory, *, dropped: Callable[[V], None] | None = None) -> None:
        """`dropped` is called with each evicted value, from any thread."""
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
        """Store a value of about `size` bytes, replacing an earlier one, and return it."""
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
        """Drop the least recently used value; the caller holds the lock."""
        key, (value, _) = next(iter(self._entries.items()))
        self.remove(key)
        if self._dropped is not None:
            self._dropped(value)


class Shares(Generic[K, V]):
    """Limited number of values, each owned by the credential that stored it.

    Beyond the limit, the owner with the most values loses its oldest. So nobody displaces the values of others who have no more than an equal share. For one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._held: dict[str, OrderedDict[K, None]] = {}
        self._owners: dict[K, str] = {}

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used now."""
        if (value := self._values.get(key)) is not None:
            self._held[self._owners[key]].move_to_end(key)
        return value

    def put(self, key: K, value: V) -> V | None:
        """Store a value for the current tenant, and return the evicted value, if any."""
        owner = self._owners.setdefault(key, current_tenant.get())
        self._held.setdefault(owner, OrderedDict())[key] = None
        self._values[key] = value
        if len(self._values) <= self._most:
            return None
        most = max(self._held.values(), key=len)
        return self.pop(next(iter(most)))

    def pop(self, key: K) -> V | None:
        """Remove a value and return it, or None if it is not there."""
        if (owner := self._owners.pop(key, None)) is not None:
            del self._held[owner][key]
            if not self._held[owner]:
                del self._held[owner]
        return self._values.pop(key, None)

    def values(self) -> ValuesView[V]:
        """Return a view of the values, in no particular order."""
        return self._values.values()
