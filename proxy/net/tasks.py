"""Detached tasks, started only here so that none is lost or fails unseen, and threads for work that would block the loop.

Python runs one thread at a time, and a computing thread hands over only every 5 ms, so few may compute at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
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
"""Seconds of processor time in threads that one request may take; four megabytes of history take fifteen."""
# Two histories of 1 MB once held both threads there were, and another client's ordinary chat waited until they were
# done. So long work never has all threads, and turns go by credential.
_LONG, _LONG_AT_ONCE = 1.0, 2
"""Seconds after which a request counts as long, and number of long ones that may compute at once; a third thread serves others."""
_SLICE = 0.05
"""Seconds after which work that is divided into parts lets others have their turn."""


@dataclass(slots=True, eq=False)
class Payer:
    """A request for which work is done, with the digest of its credential."""

    tenant: str
    seconds: float = 0.0
    """Seconds of processor time used in threads."""


PAYER: ContextVar[Payer | None] = ContextVar("payer", default=None)
"""Request for which the current task works; tasks that it starts inherit it."""


class Turns:
    """Threads with fair scheduling: next is the credential with the least time used, and its request with the least.

    Usage is forgotten once no work is waiting or running; a newcomer starts level with the credential that used least.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LONG_AT_ONCE + 1, "spillway-heavy")
        self._lock = Lock()
        self._waiting: list[tuple[Payer, Future[Any], Callable[[], Any]]] = []
        self._used = dict[str, float]()
        self._long = self.running = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work to be done in a thread when its turn comes.

        Raises:
            TooMuchWork: the request has used up its processor time.
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
        """Do waiting work until none is left that may run now."""
        while (piece := self._next()) is not None:
            payer, long, future, work = piece
            started = thread_time()
            result, error = None, None
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as caught:  # noqa: BLE001 - raised where it is awaited
                    error = caught
            spent = thread_time() - started
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
    # Like `asyncio.create_task`, which would set the name a second time.
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(_done)
    return task


async def offload_if(heavy: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: FBT001 - reads as a condition
    """Do the work and return its result: in a thread if it is heavy, else at once. It must not raise `StopIteration`."""
    if not heavy:
        return work(*args, **kwargs)
    return await asyncio.wrap_future(TURNS.submit(partial(work, *args, **kwargs)))


async def offload_each(heavy: bool, work: Callable[[S], T], values: Iterable[S]) -> list[T]:  # noqa: FBT001 - as above
    """Do the work for each value: if it is heavy, in a thread, where others have turns between two values.

    These are also the points at which it ends if its client has left.
    """
    flow = _each(work, values)
    while (step := await offload_if(heavy, next_step, flow, None)) is None:
        pass
    return step[0]


def _each(work: Callable[[S], T], values: Iterable[S]) -> Generator[None, None, list[T]]:
    done = list[T]()
    for value in values:
        done.append(work(value))
        yield
    return done


def next_step(flow: Generator[S, Any, T], reply: Any) -> S | tuple[T]:
    """Return a flow's next step after a reply (None to begin it), or its result in a tuple.

    A flow may yield None where others may take their turn, and where it may end because its client has left. Such a
    step is returned only once a slice of time is over.
    """
    end = thread_time() + _SLICE
    try:
        while (step := flow.send(reply)) is None and thread_time() < end:
            reply = None
    except StopIteration as stop:
        return (stop.value,)
    return step


def running() -> frozenset[asyncio.Task[Any]]:
    """Return the tasks that have not ended yet."""
    return frozenset(_running)


async def cancel_all() -> None:
    """Cancel all tasks of this loop except the caller, and wait for them, at shutdown. Other loops of the process go on."""
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    tasks = [task for task in tuple(_running) if task.get_loop() is loop and not (task.done() or task is caller)]
    if tasks:
        await asyncio.wait(tasks, timeout=0.25)  # gives pending writes to the store a moment
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task %s failed: %s", task.get_name(), type(error).__name__)
