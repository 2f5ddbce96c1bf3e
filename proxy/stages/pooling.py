"""Slots that share one memory: when it is full, all of them are cleared, whosever prompt was small.

llama-server's default is four slots over one KV cache of the window's size (`--kv-unified`), LM Studio's `parallel` is
alike. Neither tells beforehand, so the turns that were cleared run one at a time from then on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from proxy.core.overflow import Overflow
from proxy.stages.turn import Turn
from proxy.telemetry import Key

MOST = 12
"""How many times a turn is cleared before the refusal is taken for its own."""
BREATH = 0.1
"""Seconds that a turn which is the only one of its kind waits before it tries again, times the tries."""


class SharedPool:
    """Who may go on after the slots were cleared."""

    def __init__(self) -> None:
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait(self, turn: Turn) -> None:
        """Wait until the turn may be sent again."""
        turn.cleared += 1
        if turn.alone is None:
            lock = self._locks[turn.key]
            await lock.acquire()
            turn.alone = lock
        else:
            await asyncio.sleep(BREATH * turn.cleared)


def leave(turn: Turn) -> None:
    """The turn is over: the next one may go on."""
    if turn.alone is not None:
        turn.alone.release()
        turn.alone = None


def was_cleared(turn: Turn, overflow: Overflow) -> bool:
    """Whether a refusal is not about this prompt: it names no figures, and the prompt fits by far."""
    budget = turn.budget
    if budget is None or overflow.window is not None or not overflow.shared or turn.cleared >= MOST:
        return False
    return turn.estimate.upper < budget.pause_point
