"""Who makes what, within this process: claims with an expiry, and waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

POLL = 0.1
"""Seconds between two looks at somebody else's claim."""

_SWEEP_ABOVE = 256


@dataclass(slots=True)
class _Claim:
    expires: float
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class LocalClaims:
    """See `Claims`: those of this process. A claim that is never released ends by itself.

    A release is for the key, not for the taker: one that comes after the expiry, when somebody else of
    this process has claimed the key since, frees that claim. The price is work done twice, never harm.
    """

    def __init__(self, steady: Callable[[], float]) -> None:
        """`steady` gives seconds that never go back or jump."""
        self._steady = steady
        self._held: dict[str, _Claim] = {}

    def held(self, key: str) -> bool:
        """Whether somebody holds it now."""
        claim = self._held.get(key)
        return claim is not None and claim.expires > self._steady()

    async def claim(self, key: str, seconds: float) -> bool:
        """See `Claims.claim`."""
        if self.held(key):
            return False
        self._free(key)
        if len(self._held) >= _SWEEP_ABOVE:
            self._sweep()
        self._held[key] = _Claim(self._steady() + seconds)
        return True

    async def renew(self, key: str, seconds: float) -> None:
        """See `Claims.renew`."""
        if (claim := self._held.get(key)) is not None:
            claim.expires = self._steady() + seconds

    async def release(self, key: str) -> None:
        """See `Claims.release`. Wakes those who wait."""
        self._free(key)

    async def wait(self, key: str, seconds: float) -> None:
        """See `Claims.wait`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.held(key):
                    await _nap(self._held[key].freed)

    def _free(self, key: str) -> None:
        if (claim := self._held.pop(key, None)) is not None:
            claim.freed.set()

    def _sweep(self) -> None:
        for key in [key for key in self._held if not self.held(key)]:
            self._free(key)


async def _nap(freed: asyncio.Event) -> None:
    # The expiry is by a clock that need not be the event loop's, so look again now and then.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL):
            await freed.wait()
