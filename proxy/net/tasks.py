"""Detached tasks, started only here so that none is lost or fails unseen, and threads for work that would block the loop.

Python runs one thread at a time: a thread that computes hands over every 5 ms, so few of them may compute at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import thread_time
from typing import Any, Final, ParamSpec, TypeVar

from proxy.core.errors import TooMuchWork

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger("spillway.tasks")
_running: set[asyncio.Task[Any]] = set()

MOST_SECONDS: Final = 60.0
"""Of processor time in threads that one request may take; four megabytes of history take fifteen."""
_LONG, _LONG_AT_ONCE = 1.0, 2
"""Seconds after which a request counts as long, and how many such may compute at once: a third thread serves the others."""
_SLICE = 0.05
"""Seconds for which work that is done in parts goes on before others have their turn."""


@dataclass(slots=True, eq=False)
class Payer:
    """A request, with the digest of the credential that it came with, for which work is done."""

    tenant: str
    seconds: float = 0.0
    """Of processor time that it took in threads."""


PAYER: ContextVar[Payer | None] = ContextVar("payer", default=None)
"""For whom a task works; tasks that it starts work for the same."""


class Turns:
    """Threads whose time is shared out: next is the credential that had least of it, and of its requests the one that had.

    What a credential had is forgotten once nobody waits; one that comes later starts level with the others.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LONG_AT_ONCE + 1, "spillway-heavy")
        self._lock = Lock()
        self._waiting: list[tuple[Payer, Future[Any], Callable[[], Any]]] = []
        self._used = dict[str, float]()
        self._long = self.running = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have work done in a thread when it is its turn.

        Raises:
            TooMuchWork: the request has had all that one may.
        """
        payer, future = PAYER.get() or Payer(""), Future[T]()
        if payer.seconds > MOST_SECONDS:
            raise TooMuchWork(
                f"Reading and shortening this request took more than {MOST_SECONDS:.0f} seconds of computing, the most that "
                "one may take here: start a new conversation, or send less of its history."
            )
        with self._lock:
            if not self._waiting and not self.running:
                self._used.clear()
            self._used.setdefault(payer.tenant, min(self._used.values(), default=0.0))
            self._waiting.append((payer, future, work))
        self._threads.submit(self._serve)
        return future

    def _serve(self) -> None:
        """Do what waits, as long as there is anything that may be done now."""
        while (piece := self._next()) is not None:
            payer, long, future, work = piece
            begun = thread_time()
            result, error = None, None
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as caught:  # noqa: BLE001 - raised where it is awaited
                    error = caught
            spent = thread_time() - begun
            with self._lock:
                payer.seconds += spent
                self._used[payer.tenant] = self._used.get(payer.tenant, 0.0) + spent
                self.running, self._long = self.running - 1, self._long - long
            if not future.cancelled():
                future.set_result(result) if error is None else future.set_exception(error)

    def _next(self) -> tuple[Payer, bool, Future[Any], Callable[[], Any]] | None:
        with self._lock:
            room = self._long < _LONG_AT_ONCE
            able = [at for at, (payer, _, _) in enumerate(self._waiting) if room or payer.seconds < _LONG]
            if not able:
                return None
            rank = {at: (self._used[(payer := self._waiting[at][0]).tenant], payer.seconds) for at in able}
            payer, future, work = self._waiting.pop(min(able, key=rank.__getitem__))
            long = payer.seconds >= _LONG
            self.running, self._long = self.running + 1, self._long + long
            return payer, long, future, work


TURNS: Final = Turns()


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
    return await asyncio.wrap_future(TURNS.submit(partial(work, *args, **kwargs)))


async def offload_each(heavy: bool, work: Callable[[S], T], values: Iterable[S]) -> list[T]:  # noqa: FBT001 - as above
    """Do the work for each value; if it is heavy in a thread, where others have turns between two values.

    So it also ends there when its client has left.
    """
    rest, done = iter(values), list[T]()
    while await offload_if(heavy, _some, work, rest, done):
        pass
    return done


def _some(work: Callable[[S], T], rest: Iterator[S], done: list[T]) -> bool:
    """Do a slice's worth of the rest; whether there may be more."""
    end = thread_time() + _SLICE
    for value in rest:
        done.append(work(value))
        if thread_time() >= end:
            return True
    return False


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
    if tasks:
        await asyncio.wait(tasks, timeout=0.25)  # what is being written to the store is worth a moment
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed: %s", task.get_name(), type(error).__name__)
