"""Records in memory: for tests, and for those who want nothing on disk. Gone with the process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from proxy.store.driver import MAX_VALUES, Driver, Fault, StoredRecord, StoreLimits, refusal


def open_memory(url: str, limits: StoreLimits) -> Driver:
    """Open `memory://`.

    Raises:
        SettingError: anything follows the scheme.
    """
    if url != "memory://":
        raise refusal(url, "memory:// takes nothing after it")
    return MemoryDriver(limits)


class MemoryDriver:
    """Dictionaries; records in the order of their last use."""

    name = "memory"

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._used: OrderedDict[tuple[str, bytes], tuple[float, StoredRecord]] = OrderedDict()
        self._bytes = 0
        self._values: dict[str, bytes] = {}
        self._lasting: dict[str, bytes] = {}

    @property
    def records(self) -> list[StoredRecord]:
        """All records that have not expired."""
        after = self._limits.clock() - self._limits.ttl
        return [record for used, record in self._used.values() if used > after]

    async def find(self, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """See `Driver.find`."""
        now = self._limits.clock()
        for digest in digests:
            used, record = self._used.get((scope, digest), (now, None))
            if record is not None and used > now - self._limits.ttl:
                self._used[scope, digest] = now, record
                self._used.move_to_end((scope, digest))
                return digest, record.body
        return None

    async def put(self, record: StoredRecord) -> None:
        """See `Driver.put`."""
        await self.drop(record.scope, record.digest)
        now = self._limits.clock()
        self._used[record.scope, record.digest] = now, record
        self._bytes += len(record.body)
        while self._used:
            key, (used, _) = next(iter(self._used.items()))
            if self._bytes <= self._limits.max_bytes and used > now - self._limits.ttl:
                break
            await self.drop(*key)

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        _, record = self._used.pop((scope, digest), (0.0, None))
        self._bytes -= len(record.body) if record is not None else 0

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        values = self._lasting if once else self._values
        if new is not None and not (once and key in values):
            if len(values) >= MAX_VALUES and key not in values:
                values.clear()
            values[key] = new
        return values.get(key)

    async def lease(self, key: str, owner: str, seconds: float) -> bool:
        """See `Driver.lease`. Nobody else has this memory."""
        del key, owner, seconds
        return True

    async def export(self) -> list[bytes]:
        """See `Driver.export`."""
        return [record.body for record in self.records]

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`."""
        old = [key for key, (_, record) in self._used.items() if older_than is None or record.created < older_than]
        for key in old:
            await self.drop(*key)
        return len(old)

    async def close(self) -> None:
        """See `Driver.close`."""

    def explain(self, error: Exception) -> tuple[Fault, str]:
        """See `Driver.explain`."""
        return Fault.REACH, type(error).__name__
