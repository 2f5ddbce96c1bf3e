"""Slots that share one memory: when it is full, all of them are cleared, whosever prompt was small.

llama-server's default is four slots over one KV cache of the window's size (`--kv-unified`), LM Studio's `parallel` is
alike. Neither tells beforehand, so the jobs that were cleared run one at a time from then on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from proxy.backends.overflow import Overflow
from proxy.stages.job import Job
from proxy.telemetry import Key

MOST = 12
"""How many times a job is cleared before the refusal is taken for its own."""
BREATH = 0.1
"""Seconds that a job which is the only one of its kind waits before it tries again, times the tries."""


class SharedPool:
    """Who may go on after the slots were cleared."""

    def __init__(self) -> None:
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait(self, job: Job) -> None:
        """Wait until the job may be sent again."""
        job.cleared += 1
        if job.alone is None:
            lock = self._locks[job.key]
            await lock.acquire()
            job.alone = lock
        else:
            await asyncio.sleep(BREATH * job.cleared)


def leave(job: Job) -> None:
    """The job is over: the next one may go on."""
    if job.alone is not None:
        job.alone.release()
        job.alone = None


def was_cleared(job: Job, overflow: Overflow) -> bool:
    """Whether a refusal is not about this prompt: it names no figures, and the prompt fits by far."""
    budget = job.budget
    if budget is None or overflow.window is not None or not overflow.shared or job.cleared >= MOST:
        return False
    return job.estimate.upper < budget.pause_point
