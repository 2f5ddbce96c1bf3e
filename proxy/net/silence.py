"""How long a server may say nothing: one timer for a connection, which looks back, instead of one to set and cancel per chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Watches the exchanges of a connection, one after the other."""

    __slots__ = ("_call", "_looks", "_loop", "_seconds", "_timer", "_waits", "heard")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        waits: Callable[[], bool | None],
        call: Callable[[float], None],
        *,
        looks: int = 1,
    ) -> None:
        """Make it.

        Args:
            loop: whose clock it goes by.
            waits: whether somebody waits for the server, and it is not the client that is slow; None: the exchange is over.
            call: is told the seconds once they have passed in silence.
            looks: how often `waits` is asked in the time that is allowed.
        """
        self._loop = loop
        self._waits = waits
        self._call = call
        self._looks = looks
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = 0.0
        self.heard = 0.0
        """When the server said something last, in seconds of the loop's clock."""

    @property
    def watching(self) -> bool:
        """Whether it was told to watch, and the exchange is not known to be over."""
        return self._timer is not None

    def watch(self, seconds: float) -> None:
        """Allow so many seconds of silence from now on."""
        self.heard = self._loop.time()
        if self._timer is not None:
            if seconds == self._seconds:
                return
            self._timer.cancel()
        self._seconds = seconds
        self._timer = self._loop.call_later(seconds / self._looks, self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        waits = self._waits()
        if waits is None:
            return
        now = self._loop.time()
        if not waits:
            self.heard = now
        left = self._seconds - (now - self.heard)
        if left <= 0:
            self._call(self._seconds)
        else:
            self._timer = self._loop.call_later(min(left, self._seconds / self._looks), self._look)
