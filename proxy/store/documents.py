"""JSON objects by owner and name, kept beside the checkpoints: with the same TTL, size bound and purge, in every store."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from proxy.core.history.chain import DIGEST_BYTES
from proxy.core.history.checkpoint import Checkpoint, Store

KIND = "document"


class Documents:
    """A document is stored as a checkpoint that covers nothing; no history leads to it."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch."""
        self._store = store
        self._clock = clock

    async def fetch(self, owner: str, name: str) -> dict[str, Any] | None:
        """Return what `owner` stored under that name; None where there is nothing, or the store can't be reached."""
        found = await self._store.find(_scope(owner), [_digest(name)])
        if found is None or found.kind != KIND or len(found.replacement) != 2:
            return None
        named, document = found.replacement
        return document if named == {"name": name} else None

    async def keep(self, owner: str, name: str, document: dict[str, Any]) -> bool:
        """Store it, in place of what had that name. False: it is nothing that the store takes, and is left out."""
        checkpoint = Checkpoint(
            scope=_scope(owner),
            digest=_digest(name),
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
        return await self._store.drop(_scope(owner), _digest(name))


def _scope(owner: str) -> str:
    return f"{KIND}|{owner}"


def _digest(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
