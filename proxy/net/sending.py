"""How long a server may take nothing of a request: its body waits here once the system's buffers are full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from proxy.net.silence import Silence


class Seconds(NamedTuple):
    """How long a server may say nothing, and take nothing of what is sent."""

    read: float
    send: float


_LOOKS = 4
"""How often it is looked at in the time that is allowed."""


class Sending:
    """Watches one request after the other; a timer is set only where the system does not take all of one at once."""

    __slots__ = ("_left", "_silence", "_unsent", "_written")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, unsent: Callable[[], int], call: Callable[[float], None]
    ) -> None:
        """Make it.

        Args:
            loop: whose clock it goes by.
            unsent: bytes that were written and have not left; 0 also where nobody waits for them any more.
            call: is told the seconds once they have passed with nothing taken.
        """
        self._unsent = unsent
        self._silence = Silence(loop, self._waits, call, looks=_LOOKS)
        self._written = self._left = 0
        """Bytes that were written, and those of them that had left when it was looked at last."""

    def wrote(self, size: int, seconds: float) -> None:
        """So many bytes more were written, of which some have to leave within so many seconds, and so on."""
        self._written += size
        if not self._silence.watching and (unsent := self._unsent()):
            self._left = self._written - unsent
            self._silence.watch(seconds)

    def stop(self) -> None:
        """Watch no more."""
        self._silence.stop()

    def _waits(self) -> bool | None:
        if not (unsent := self._unsent()):
            return None
        before, self._left = self._left, self._written - unsent
        return self._left <= before
