"""JSON objects by owner and name, beside the checkpoints: with the same TTL, size bound and purge, in every store."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from proxy.core.history.chain import DIGEST_BYTES
from proxy.core.history.checkpoint import Checkpoint
from proxy.store.guard import Store

KIND = "document"


class Documents:
    """A document is stored as a checkpoint that covers nothing; no history leads to it."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch."""
        self._store = store
        self._clock = clock

    async def fetch(self, owner: str, name: str) -> dict[str, Any] | None:
        """Return what `owner` stored under that name; None where there is nothing, or the store can't be reached."""
        scope, digest = _place(owner, name)
        found = await self._store.find(scope, [digest])
        return None if found is None else found.replacement[-1]

    async def keep(self, owner: str, name: str, document: dict[str, Any]) -> bool:
        """Store it, in place of what had that name. False: it is nothing that the store takes, and is left out."""
        scope, digest = _place(owner, name)
        checkpoint = Checkpoint(
            scope=scope,
            digest=digest,
            covered=0,
            replacement=({"name": name}, document),
            tokens_before=0,
            tokens_after=0,
            kind=KIND,
            created=self._clock(),
        )
        return await self._store.put(checkpoint)

    async def drop(self, owner: str, name: str) -> bool:
        """Delete it, if it is there; False: the store does not take that now."""
        return await self._store.drop(*_place(owner, name))


def _place(owner: str, name: str) -> tuple[str, bytes]:
    """Return the scope and the digest under which a document is stored."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    return f"{KIND}|{owner}", digest
