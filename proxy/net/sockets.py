"""Asking a socket what the event loop has not told yet."""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial

if hasattr(select, "poll"):

    def readable(fd: int) -> Callable[[], object]:
        """Tells, whenever it is called, whether something has arrived, or the other side has closed."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return partial(poll.poll, 0)

else:  # Windows, where select takes any socket; elsewhere none above 1023

    def readable(fd: int) -> Callable[[], object]:
        """Tells, whenever it is called, whether something has arrived, or the other side has closed."""
        return lambda: select.select([fd], [], [], 0)[0]
