"""Checkpoints in memory: for tests, and for those who want nothing on disk. Gone with the process."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.history.checkpoint import Checkpoint
from proxy.store.driver import MAX_VALUES, StoreLimits, decode


class MemoryDriver:
    """See `Driver`: dictionaries."""

    name = "memory"

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._stored: dict[tuple[str, bytes], tuple[float, float, bytes]] = {}
        """Time of last use, time of making and body, in the order of the last use."""
        self._bytes = 0
        self._values: dict[tuple[str, bool], bytes] = {}

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Driver.find`."""
        now = self._limits.clock()
        for digest in digests if self._stored else ():
            used, created, body = self._stored.get((scope, digest), (0.0, 0.0, b""))
            if body and used > now - self._limits.ttl:
                del self._stored[scope, digest]
                self._stored[scope, digest] = now, created, body
                return decode(body, scope, digest)
        return None

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """See `Driver.put`."""
        now = self._limits.clock()
        await self.drop(checkpoint.scope, checkpoint.digest)
        self._stored[checkpoint.scope, checkpoint.digest] = now, checkpoint.created, body
        self._bytes += len(body)
        for key, (used, _, _) in tuple(self._stored.items()):
            if self._bytes <= self._limits.max_bytes and used > now - self._limits.ttl:
                break
            await self.drop(*key)

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        _, _, body = self._stored.pop((scope, digest), (0.0, 0.0, b""))
        self._bytes -= len(body)

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        known = self._values.get((key, once))
        if new is None or (once and known is not None):
            return known
        if known is None and not once and len(self._values) >= MAX_VALUES:
            self._values = {name: value for name, value in self._values.items() if name[1]}
        self._values[key, once] = new
        return new

    async def lease(self, key: str, seconds: float) -> bool:
        """See `Driver.lease`. Nobody else has this memory."""
        del key, seconds
        return True

    async def export(self) -> list[Checkpoint]:
        """See `Driver.export`."""
        after = self._limits.clock() - self._limits.ttl
        bodies = [body for used, _, body in self._stored.values() if used > after]
        return [checkpoint for body in bodies if (checkpoint := decode(body)) is not None]

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`."""
        old = [key for key, (_, created, _) in self._stored.items() if older_than is None or created < older_than]
        for key in old:
            await self.drop(*key)
        return len(old)

    async def close(self) -> None:
        """See `Driver.close`."""
