"""Slots that share one memory: when it is full, all of them are cleared, whosever prompt was small.

llama-server's default is four slots over one KV cache of the window's size (`--kv-unified`), LM Studio's `parallel` is
alike. Neither tells beforehand, so the requests that were cleared run one at a time from then on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from proxy.backends.profile import ModelKey
from proxy.stages.job import Job

BREATH = 0.1
"""Seconds that the one which holds the pool waits before it tries again, times the tries."""


class SharedPool:
    """Who may go on after the slots were cleared."""

    def __init__(self) -> None:
        self._locks: defaultdict[ModelKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait(self, job: Job) -> None:
        """Wait until the job may be sent again."""
        if job.alone is None:
            lock = self._locks[job.key]
            await lock.acquire()
            job.alone = lock
        else:
            await asyncio.sleep(BREATH * job.spent.waits)


async def leave(job: Job) -> None:
    """The job is over, maybe with an answer just opened that nobody reads: nothing goes on for it, the next one may go on."""
    if job.alone is not None:
        job.alone.release()
        job.alone = None
    if job.opened is not None:
        await job.opened.aclose()
