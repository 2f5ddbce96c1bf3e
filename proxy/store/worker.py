"""One thread with a bounded queue, for work that blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class QueueFull(Exception):
    """More is queued than the thread can be expected to finish soon."""


class Worker:
    """Runs jobs one after the other, in the order they came.

    The thread is a daemon: a disk that hangs must not keep the process from ending.
    """

    def __init__(self, name: str, *, depth: int) -> None:
        """`depth`: how many jobs may wait where one more is offered, rather than asked for."""
        self._depth = depth
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def offer(self, job: Callable[[], T]) -> Future[T]:
        """Queue what nobody waits for.

        Raises:
            QueueFull: as many as `depth` wait already.
        """
        if self._jobs.qsize() >= self._depth:
            raise QueueFull
        return self.submit(job)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue what somebody waits for: there are no more of these than of those. One that is cancelled before its turn is left out."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def stop(self, last: Callable[[], T]) -> Future[T]:
        """End the thread after what is queued now and this last job."""
        future: Future[T] = Future()
        self._jobs.put((future, last))
        self._jobs.put(None)
        return future

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            _settle(*item)
            del item  # the last job's data must not live on while the thread waits


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)
