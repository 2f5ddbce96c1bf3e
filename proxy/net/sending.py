"""How long a server may take nothing of a request: its body waits here once the system's buffers are full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple


class Seconds(NamedTuple):
    """How long a server may say nothing, and take nothing of what is sent."""

    read: float
    send: float


_LOOKS = 4
"""How often it is looked at in the time that is allowed."""


class Sending:
    """Watches one request after the other; a timer is set only where the system does not take all of one at once."""

    __slots__ = ("_call", "_left", "_loop", "_seconds", "_since", "_timer", "_unsent", "_written")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, unsent: Callable[[], int], call: Callable[[float], None]
    ) -> None:
        """Make it.

        Args:
            loop: whose clock it goes by.
            unsent: bytes that were written and have not left; 0 also where nobody waits for them any more.
            call: is told the seconds once they have passed with nothing taken.
        """
        self._loop = loop
        self._unsent = unsent
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = self._since = 0.0
        self._written = self._left = 0
        """Bytes that were written, and those of them that had left when it was looked at last."""

    def wrote(self, size: int, seconds: float) -> None:
        """So many bytes more were written, of which some have to leave within so many seconds, and so on."""
        self._written += size
        if self._timer is None and (unsent := self._unsent()):
            self._seconds, self._left, self._since = seconds, self._written - unsent, self._loop.time()
            self._timer = self._loop.call_later(seconds / _LOOKS, self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not (unsent := self._unsent()):
            return
        now, left = self._loop.time(), self._written - unsent
        if left > self._left:
            self._left, self._since = left, now
        if now - self._since >= self._seconds:
            self._call(self._seconds)
        else:
            self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look)
