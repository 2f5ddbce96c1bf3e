"""Checkpoints in memory: for tests, and for those who want nothing on disk. Gone with the process."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store.claims import LocalClaims
from proxy.store.codec import decode, encode_or_drop
from proxy.store.ledger import Key, Ledger
from proxy.store.opening import StoreLimits, refusal


def open_memory(url: str, limits: StoreLimits) -> CheckpointStore:
    """Open `memory://`.

    Raises:
        SettingError: anything follows the scheme.
    """
    if url != "memory://":
        raise refusal(url, "memory:// takes nothing after it")
    return MemoryStore(limits)


class MemoryStore(LocalClaims):
    """A dictionary with expiry and a size cap; always healthy.

    Checkpoints are kept encoded: sizes are then exact, and a caller that changes what it put or found
    does not change what is stored.
    """

    healthy = True

    def __init__(self, limits: StoreLimits) -> None:
        super().__init__(limits.clock)
        self._max_bytes = limits.max_bytes
        self._ttl = limits.ttl
        self._ledger = Ledger(ttl=limits.ttl, max_bytes=limits.max_bytes)
        self._bodies: dict[Key, bytes] = {}
        self._state: dict[str, bytes] = {}

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`."""
        if scope not in self._ledger:
            return None
        now = self._clock()
        digest = self._ledger.first(scope, digests, now)
        if digest is None:
            return None
        self._ledger.use((scope, digest), now)
        return decode(self._bodies[scope, digest], scope, digest)

    async def put(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.put`."""
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is None:
            return
        key = (checkpoint.scope, checkpoint.digest)
        _, gone = self._ledger.add(key, len(body), self._clock())
        for old in gone:
            del self._bodies[old]
        self._bodies[key] = body

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        return self._state.get(key)

    async def put_state(self, key: str, value: bytes) -> None:
        """See `LearnedState.put_state`."""
        self._state[key] = bytes(value)

    async def stats(self) -> StoreStats:
        """See `StoreAdmin.stats`."""
        live = self._live()
        size = sum(len(self._bodies[item.scope, item.digest]) for item in live)
        return StoreStats(len(live), size, live[0].created if live else None)

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`."""
        keys = [
            key
            for key, body in self._bodies.items()
            if older_than is None or ((item := decode(body)) is not None and item.created < older_than)
        ]
        for key in keys:
            self._ledger.drop(key)
            del self._bodies[key]
        return len(keys)

    async def export(self) -> list[Checkpoint]:
        """See `StoreAdmin.export`."""
        return self._live()

    async def close(self) -> None:
        """See `StoreAdmin.close`; what is held stays readable until the object goes."""

    def _live(self) -> list[Checkpoint]:
        now = self._clock()
        held = (decode(body) for key, body in self._bodies.items() if self._ledger.live(key, now))
        return sorted((item for item in held if item is not None), key=lambda item: item.created)
