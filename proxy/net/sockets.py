"""Asking a socket what the event loop has not told yet."""

from __future__ import annotations

import select

_POLLRDHUP = getattr(select, "POLLRDHUP", None)  # Linux


def hung_up(fd: int) -> bool:
    """Whether the other side has closed, whatever is still to be read before that; False where the system can't tell."""
    if _POLLRDHUP is None:
        return False
    poll = select.poll()
    poll.register(fd, _POLLRDHUP)
    return bool(poll.poll(0))
