"""Heavy work apart from the loop, which goes on meanwhile.

Python runs one thread at a time: a thread that computes hands over every 5 ms, so few of them may compute at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="spillway-heavy")


async def apart(heavy: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: FBT001 - reads as a condition
    """Do the work and return its result; in a thread if it is heavy, else at once. It must not raise `StopIteration`."""
    if not heavy:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args, **kwargs))
