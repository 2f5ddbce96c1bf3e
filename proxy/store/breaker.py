"""Circuit breakers, so that a store in trouble neither holds up nor fails a request.

After a failure the store is left alone for a second, then tried by one operation; each further failure
doubles the pause, up to half a minute. What is left out answers as if the store were empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE = 1.0
"""Seconds without a try after the first failure."""
LONGEST_PAUSE = 30.0
"""Seconds between tries when it goes on failing."""

LATE = 1.5
"""A time-out that comes later than this share of its time is the event loop's doing."""

_log = logging.getLogger("spillway.store")


class Breaker:
    """Remembers failures and says when to try again. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.healthy = True
        self._pause = FIRST_PAUSE
        self._since = float("-inf")
        self._retry_at = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether `admits` would say yes."""
        return self.healthy or now >= self._retry_at

    def admits(self, now: float) -> bool:
        """Whether to try; while unhealthy that is one operation per pause, and this one is it."""
        ready = self.ready(now)
        if ready and not self.healthy:
            self._retry_at = now + self._pause
        return ready

    def failed(self, started: float, now: float) -> bool:
        """Note that an operation begun at `started` failed; True when that is news."""
        if not self.healthy and started < self._since:
            return False  # one of many that were under way when the first one failed
        news, self._pause = self.healthy, FIRST_PAUSE if self.healthy else min(2 * self._pause, LONGEST_PAUSE)
        self.healthy, self._since, self._retry_at = False, now, now + self._pause
        return news

    def worked(self, started: float) -> bool:
        """Note that an operation begun at `started` worked; True when that is news."""
        if self.healthy or started < self._since:
            return False
        self.healthy = True
        return True


@dataclass(frozen=True, slots=True)
class Attempt:
    """An operation under way: when it began (monotonic seconds), whether it writes, the seconds it may take."""

    started: float
    write: bool
    seconds: float


class Guard:
    """Runs the operations of one store: none raises, each state change is logged once.

    There are two breakers, because a store that is full or read-only still answers reads, and answering
    those is what keeps conversations short.
    """

    def __init__(
        self,
        name: str,
        *,
        describe: Callable[[Exception], str],
        refuses: Callable[[Exception], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what tells errors apart.

        Args:
            name: of the store, for the log.
            describe: error to a few words that never quote what was stored.
            refuses: whether an error means that the store works but takes no writes.
            now: monotonic seconds.
        """
        self._name = name
        self._describe = describe
        self._refuses = refuses
        self._now = now
        self._reach = Breaker()
        self._writes = Breaker()
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Whether the store was reached, and took writes, when last tried."""
        return self._reach.healthy and self._writes.healthy

    @property
    def ready_to_write(self) -> bool:
        """Whether a write would be admitted now."""
        now = self._now()
        return not self._closed and self._reach.ready(now) and self._writes.ready(now)

    def close(self) -> None:
        """Admit nothing any more."""
        self._closed = True

    async def run(
        self, operation: Callable[[], Awaitable[T]], otherwise: T, *, seconds: float, write: bool = False
    ) -> T:
        """Run what keeps to so many seconds by itself; `otherwise` when it is not admitted, or fails."""
        attempt = self.enter(seconds=seconds, write=write)
        if attempt is None:
            return otherwise
        try:
            value = await operation()
        except Exception as error:  # noqa: BLE001 - whatever a client library raises, no request fails of it
            self.failed(attempt, error)
            return otherwise
        self.worked(attempt)
        return value

    def enter(self, *, seconds: float, write: bool) -> Attempt | None:
        """Ask to begin; None for no. Every attempt but a cancelled one ends with `failed` or `worked`."""
        now = self._now()
        if self._closed or not self._reach.admits(now):
            return None
        return None if write and not self._writes.admits(now) else Attempt(now, write, seconds)

    def failed(self, attempt: Attempt, error: Exception) -> None:
        """Note a failure."""
        now = self._now()
        if isinstance(error, TimeoutError) and now - attempt.started > LATE * attempt.seconds:
            return  # the event loop itself was held up: that says nothing about the store
        if not (attempt.write and self._refuses(error)):
            if self._reach.failed(attempt.started, now):
                _log.warning("%s is unavailable (%s): working without it", self._name, self._describe(error))
            return
        self._reached(attempt)
        if self._writes.failed(attempt.started, now):
            _log.warning("%s takes no writes (%s): nothing new is kept", self._name, self._describe(error))

    def worked(self, attempt: Attempt) -> None:
        """Note a success."""
        self._reached(attempt)
        if attempt.write and self._writes.worked(attempt.started):
            _log.info("%s takes writes again", self._name)

    def _reached(self, attempt: Attempt) -> None:
        if self._reach.worked(attempt.started):
            _log.info("%s is available again", self._name)
