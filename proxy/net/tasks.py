"""The only place that starts detached tasks: a reference is kept, and a failure is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("spillway.tasks")
_running: set[asyncio.Task[Any]] = set()


def spawn(coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a task that outlives its caller's frame; exceptions are logged by type, never with contents."""
    # As `asyncio.create_task`, which would name it once more.
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(_done)
    return task


def running() -> frozenset[asyncio.Task[Any]]:
    """Tasks that have not ended yet."""
    return frozenset(_running)


async def cancel_all() -> None:
    """Cancel what still runs in this loop, but the caller, and wait for it: at shutdown. Another loop of the process goes on."""
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    tasks = [
        task for task in tuple(_running) if task.get_loop() is loop and not (task.done() or task is caller)
    ]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed: %s", task.get_name(), type(error).__name__)
