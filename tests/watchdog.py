"""How long a loop is blocked: by what runs on it, and by threads that keep Python to themselves.

Reckoned in CPU time of the process, so that it is the same however busy the machine is.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

BEAT = 0.002
"""Seconds between two looks."""
_USUAL = 0.02
"""CPU seconds that `_work` takes on a machine of which the budget is asked."""


class Watchdog:
    """Inside its `with`, the loop that runs is watched."""

    def __init__(self) -> None:
        self.longest = 0.0
        """CPU seconds of the longest time in which the loop came to nothing else."""
        self._before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._before = time.process_time()
        self._beat()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._beat()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now = time.process_time()
        self.longest = max(self.longest, now - self._before)
        self._before = now
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(BEAT, self._beat)


def slowness() -> float:
    """How many times slower than usual this machine computes; at least 1."""
    return max(1.0, min(_work() for _ in range(3)) / _USUAL)


def _work() -> float:
    start = time.process_time()
    sum(number % 7 for number in range(400_000))
    return time.process_time() - start
