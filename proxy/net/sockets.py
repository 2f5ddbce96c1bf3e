"""Asking a socket what the event loop has not told yet."""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial

_POLLRDHUP = getattr(select, "POLLRDHUP", None)  # Linux


def hung_up(fd: int) -> bool:
    """Whether the other side has closed, whatever is still to be read before that; False where the system can't tell."""
    if _POLLRDHUP is None:
        return False
    poll = select.poll()
    poll.register(fd, _POLLRDHUP)
    return bool(poll.poll(0))


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
