"""Waiting without sleeping blindly: gates that hold a stream, and polling with a deadline."""

import asyncio
import threading
import time
from collections.abc import Callable

PATIENCE = 20.0
"""Seconds until what does not become true is a failure: far more than any of it takes, on a busy machine too."""
PATIENT = 5.0
"""Seconds that a store may take that is in order: a busy test machine must not look like a slow store."""

_POLL = 0.002
_POLL_MOST = 0.05
"""Seconds between the first two looks at a condition, and between the last: a look may cost what it waits for."""

HEADERS = -1
"""Chunk index that stands for the status line: a gate there holds back the whole response."""


def wait_until(predicate: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Block until the predicate holds; for tests that have no event loop of their own.

    Raises:
        AssertionError: it did not hold within `timeout` seconds.
    """
    deadline, pause = time.monotonic() + timeout, _POLL
    while not predicate():
        assert time.monotonic() < deadline, f"not true within {timeout} s"
        time.sleep(pause)
        pause = min(_POLL_MOST, 1.2 * pause)


async def await_until(predicate: Callable[[], object], within: float = PATIENCE) -> None:
    """Same as `wait_until`, for async tests; `within` is in seconds."""
    deadline, pause = time.monotonic() + within, _POLL
    while not predicate():
        assert time.monotonic() < deadline, f"not true within {within} s"
        await asyncio.sleep(pause)
        pause = min(_POLL_MOST, 1.2 * pause)


class Gate:
    """Holds streams before content chunk `at` (0: the first with content; `HEADERS`: before the status line).

    One gate serves any number of streams. Methods may be called from any thread.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self._lock = threading.Lock()
        self._allowed: float = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def reached(self) -> bool:
        return self.waiting > 0

    def wait_reached(self, timeout: float = PATIENCE) -> None:
        wait_until(lambda: self.reached, timeout)

    def release(self, chunks: int) -> None:
        """Let this many more chunks through, then hold again."""
        self._allow(chunks)

    def open(self) -> None:
        self._allow(float("inf"))

    async def passage(self, index: int) -> None:
        """Wait until the chunk of this index may pass; called by the fake."""
        while index >= self.at:
            event = self._ticket()
            if event is None:
                return
            try:
                await event.wait()
            finally:
                with self._lock:
                    self._waiting = [entry for entry in self._waiting if entry[1] is not event]

    def _ticket(self) -> asyncio.Event | None:
        with self._lock:
            if self._allowed > 0:
                self._allowed -= 1
                return None
            event = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), event))
            return event

    def _allow(self, chunks: float) -> None:
        with self._lock:
            self._allowed += chunks
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
