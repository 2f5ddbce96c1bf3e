"""Sealing what clients keep for Spillway, with a key that the store holds for all replicas."""

from __future__ import annotations

from secrets import token_bytes
from typing import Any

from proxy.history.checkpoint import Store
from proxy.history.sealed import KEY_BYTES, is_sealed, opened, seal
from proxy.net.apart import apart
from proxy.neutral.weight import HEAVY, is_heavy

_NAME = "sealing"


class Sealer:
    """Seals values, and opens what it, or a replica, has sealed.

    While the store has no key to tell, one of this process alone is used. It becomes the store's if that has none; else
    what was sealed with it opens until the process ends.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = [token_bytes(KEY_BYTES)]
        """The one to seal with first."""
        self._shared = False

    async def seal(self, owner: str, purpose: str, value: Any) -> str:
        """A JSON value that only this owner gets opened, for this purpose: see `proxy.history.sealed`.

        Raises:
            TypeError, ValueError: it is not JSON.
        """
        keys = await self._known()
        return await apart(is_heavy(value), seal, keys[0], owner, purpose, value)

    async def open(self, owner: str, purpose: str, text: Any) -> Any:
        """The value under a seal; None for what was sealed by somebody else, for another, or for something else."""
        if not is_sealed(text):
            return None
        keys = await self._known()
        return await apart(len(text) > HEAVY, opened, keys, owner, purpose, text)

    async def _known(self) -> list[bytes]:
        if not self._shared and (key := await self._store.value(_NAME, self._keys[0], once=True)) is not None:
            self._shared = True
            self._keys = [key, *(own for own in self._keys if own != key)]
        return self._keys
