"""Asking a socket what the event loop has not told yet."""

from __future__ import annotations

import select

if hasattr(select, "poll"):

    def is_readable(fd: int) -> bool:
        """Whether something has arrived, or the other side has closed."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

else:  # Windows, where select takes any socket; elsewhere none above 1023

    def is_readable(fd: int) -> bool:
        """Whether something has arrived, or the other side has closed."""
        return bool(select.select([fd], [], [], 0)[0])
