"""Checkpoints in memory: for tests, and for those who want nothing on disk. Gone with the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store.claims import LocalClaims
from proxy.store.codec import decode, encode, encode_or_drop
from proxy.store.ledger import Key, Ledger
from proxy.store.opening import MOST_STATES, StoreLimits, refusal


def open_memory(url: str, limits: StoreLimits) -> CheckpointStore:
    """Open `memory://`.

    Raises:
        SettingError: anything follows the scheme.
    """
    if url != "memory://":
        raise refusal(url, "memory:// takes nothing after it")
    return MemoryStore(limits)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A checkpoint as it is written, and when it was made (seconds since the epoch)."""

    key: Key
    body: bytes
    created: float


class Shelf:
    """Checkpoints by scope and digest, with expiry and a size cap.

    They are kept encoded: sizes are then exact, and a caller that changes what it put or found does not change
    what is kept.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self._ledger = Ledger(limits)
        self._held: dict[Key, Encoded] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`."""
        digest = self._ledger.first(scope, digests)
        if digest is None:
            return None
        self._ledger.use((scope, digest))
        return decode(self._held[scope, digest].body, scope, digest)

    def put(self, item: Encoded) -> None:
        """Keep it; others go where there are too many."""
        _, gone = self._ledger.add(item.key, len(item.body))
        for old in gone:
            del self._held[old]
        self._held[item.key] = item

    def drop(self, key: Key) -> None:
        """Forget it, if it is here."""
        self._ledger.drop(key)
        self._held.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        for key in list(self._held):
            self.drop(key)

    def __iter__(self) -> Iterator[Encoded]:
        """All of them as they are now, those that have expired too."""
        return iter(list(self._held.values()))

    def live(self) -> list[Checkpoint]:
        """Those that have not expired, oldest first."""
        held = (decode(item.body) for item in self if self._ledger.live(item.key))
        return sorted((item for item in held if item is not None), key=lambda item: item.created)


class MemoryStore(LocalClaims):
    """A shelf, and learned values; always healthy."""

    healthy = True
    skipped = 0

    def __init__(self, limits: StoreLimits) -> None:
        super().__init__(limits.steady)
        self._max_bytes = limits.max_bytes
        self._shelf = Shelf(limits)
        self._state: dict[str, bytes] = {}
        self._secrets: dict[str, bytes] = {}

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`."""
        return self._shelf.find(scope, digests)

    async def put(self, checkpoint: Checkpoint) -> bool:
        """See `Checkpoints.put`."""
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is not None:
            self._shelf.put(Encoded((checkpoint.scope, checkpoint.digest), body, checkpoint.created))
        return body is not None

    async def drop(self, scope: str, digest: bytes) -> bool:
        """See `Checkpoints.drop`."""
        self._shelf.drop((scope, digest))
        return True

    async def secret(self, name: str, fresh: bytes) -> bytes | None:
        """See `Secrets.secret`."""
        return self._secrets.setdefault(name, bytes(fresh))

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        return self._state.get(key)

    async def put_state(self, key: str, value: bytes) -> None:
        """See `LearnedState.put_state`."""
        if len(self._state) >= MOST_STATES and key not in self._state:
            self._state.clear()
        self._state[key] = bytes(value)

    async def stats(self) -> StoreStats:
        """See `StoreAdmin.stats`."""
        live = self._shelf.live()
        return StoreStats(
            len(live), sum(len(encode(item)) for item in live), live[0].created if live else None
        )

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`."""
        old = [item.key for item in self._shelf if older_than is None or item.created < older_than]
        for key in old:
            self._shelf.drop(key)
        return len(old)

    async def export(self) -> list[Checkpoint]:
        """See `StoreAdmin.export`."""
        return self._shelf.live()

    async def check(self) -> str:
        """See `StoreAdmin.check`."""
        return "ok"

    async def close(self) -> None:
        """See `StoreAdmin.close`; what is held stays readable until the object goes."""
