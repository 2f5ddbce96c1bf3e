"""Detached tasks, started only here so that none is lost or fails unseen, and threads for work that would block the loop.

Python runs one thread at a time: a thread that computes hands over every 5 ms, so few of them may compute at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger("spillway.tasks")
_running: set[asyncio.Task[Any]] = set()
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="spillway-heavy")


def spawn(coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a task that outlives its caller's frame; exceptions are logged by type, never with contents."""
    # As `asyncio.create_task`, which would name it once more.
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(_done)
    return task


async def offload_if(heavy: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: FBT001 - reads as a condition
    """Do the work and return its result; in a thread if it is heavy, else at once. It must not raise `StopIteration`."""
    if not heavy:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args, **kwargs))


def next_step(flow: Generator[S, Any, T], reply: Any) -> S | tuple[T]:
    """Return a flow's next step after a reply (None: it is to begin), or its result in a tuple."""
    try:
        return flow.send(reply)
    except StopIteration as stop:
        return (stop.value,)


def running() -> frozenset[asyncio.Task[Any]]:
    """Tasks that have not ended yet."""
    return frozenset(_running)


async def cancel_all() -> None:
    """Cancel what still runs in this loop, but the caller, and wait for it: at shutdown. Another loop of the process goes on."""
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    tasks = [task for task in tuple(_running) if task.get_loop() is loop and not (task.done() or task is caller)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed: %s", task.get_name(), type(error).__name__)
