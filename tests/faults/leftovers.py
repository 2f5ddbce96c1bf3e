"""What a proxy still holds when nobody asks for anything: there should be nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from proxy.net.transport import HttpTransport
from tests.faults.backend import Faulty
from tests.faults.objects import all_of
from tests.proxying import Proxy


class Leftovers:
    """Compares a proxy with what it was when this was made."""

    def __init__(self, proxy: Proxy, transport: HttpTransport, *backends: Faulty) -> None:
        self._proxy, self._transport, self._backends = proxy, transport, backends
        self._before, self._locks = self._tasks(), _held()

    def found(self) -> list[str]:
        """A line for each thing that is left."""
        tasks = [f"task {task.get_name()} {task.get_coro()}" for task in self._tasks() - self._before]
        busy = ["a connection"] * self._transport.in_use
        answering = [f"{each.kind} answers {each.active} requests" for each in self._backends if each.active]
        return [*tasks, *busy, *answering] or [f"a lock {lock}" for lock in _held() - self._locks]

    def _tasks(self) -> set[asyncio.Task[object]]:
        while True:
            with suppress(RuntimeError):  # the set changed while it was gone through
                return {task for task in asyncio.all_tasks(self._proxy.loop) if not task.done()}


def _held() -> set[asyncio.Lock]:
    """Every lock that somebody holds, wherever it is."""
    return {lock for lock in all_of(asyncio.Lock) if lock.locked()}
