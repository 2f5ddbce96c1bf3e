"""What a proxy still holds when nobody asks for anything: there should be nothing."""

import asyncio
import gc
import sys
import time
from contextlib import suppress

from proxy.net.transport import HttpTransport
from tests.connections import in_use
from tests.faults.backend import Faulty
from tests.proxying import Proxy


class Leftovers:
    """Compares a proxy with what it was when this was made."""

    def __init__(self, proxy: Proxy, transport: HttpTransport, *backends: Faulty) -> None:
        self._proxy, self._transport, self._backends = proxy, transport, backends
        self._before, self._locks = self._tasks(), locked()

    def found(self) -> list[str]:
        tasks = [f"task {task.get_name()} {task.get_coro()}" for task in self._tasks() - self._before]
        busy = ["a connection"] * in_use(self._transport)
        answering = [f"{each.kind} answers {each.active} requests" for each in self._backends if each.active]
        return [*tasks, *busy, *answering] or [f"a lock {lock}" for lock in locked() - self._locks]

    def _tasks(self) -> set[asyncio.Task[object]]:
        while True:
            with suppress(RuntimeError):  # the set changed while it was gone through
                return {task for task in asyncio.all_tasks(self._proxy.loop) if not task.done()}


def locked() -> set[asyncio.Lock]:
    """Every lock that somebody holds, wherever it is.

    Hardly anybody else runs meanwhile: a tuple that is just being made must be held by nobody but who makes it, or that fails
    with a SystemError (CPython, `_PyTuple_Resize`).
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.5)
    try:
        time.sleep(0)  # who waits to run waits as long from now on
        # By its type alone: to ask half a million objects of what they are instances takes a second.
        return {thing for thing in gc.get_objects() if type(thing) is asyncio.Lock and thing.locked()}
    finally:
        sys.setswitchinterval(usual)
