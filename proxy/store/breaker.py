"""Circuit breakers, so that a store in trouble neither holds up nor fails a request.

After a failure the store is left alone for a second, then tried by one operation; each further failure
doubles the pause, up to half a minute; so does one that comes soon after the store had worked again. What is left
out answers as if the store were empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE = 1.0
"""Seconds without a try after the first failure."""
LONGEST_PAUSE = 30.0
"""Seconds between tries when it goes on failing."""

LATE = 1.5
"""A time-out that comes later than this share of its time is the event loop's doing."""

_log = logging.getLogger("spillway.store")


class Fault(Enum):
    """What an error says of the store."""

    REACH = auto()
    """It can't be reached, or does not work."""
    WRITES = auto()
    """It works, and takes no writes."""
    RECORD = auto()
    """Nothing: the one record is at fault."""


class Breaker:
    """Remembers failures and says when to try again. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.healthy = True
        self._pause = FIRST_PAUSE
        self.since = float("-inf")
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
        if not self.healthy and started < self.since:
            return False  # one of many that were under way when the first one failed
        news, again = self.healthy, not self.healthy or now - self.since < LONGEST_PAUSE
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        self.healthy, self.since, self._retry_at = False, now, now + self._pause
        return news

    def worked(self, started: float) -> bool:
        """Note that an operation begun at `started` worked; True when that is news."""
        if self.healthy or started < self.since:
            return False
        self.healthy = True
        return True


@dataclass(frozen=True, slots=True)
class Use:
    """An operation under way: when it began (monotonic seconds), whether it writes, the seconds it may take."""

    started: float
    write: bool
    seconds: float


class StoreGuard:
    """Runs the operations of one store: none raises, each state change is logged once.

    There are two breakers, because a store that is full or read-only still answers reads, and answering
    those is what keeps conversations short.
    """

    def __init__(
        self,
        name: str,
        *,
        describe: Callable[[Exception], str],
        judge: Callable[[Exception], Fault],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what tells errors apart.

        Args:
            name: of the store, for the log.
            describe: error to a few words that never quote what was stored.
            judge: error to what it says of the store.
            now: monotonic seconds.
        """
        self._name = name
        self._describe = describe
        self._judge = judge
        self._now = now
        self._reach = Breaker()
        self._writes = Breaker()
        self._wrong = ""
        self.skipped = 0
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Whether the store was reached, and took writes, when last tried."""
        return self._reach.healthy and self._writes.healthy

    @property
    def state(self) -> str:
        """`ok`, or what is wrong since it was last tried."""
        return "ok" if self.healthy else self._wrong

    @property
    def writable(self) -> bool:
        """Whether the store took the last write."""
        return self._writes.healthy

    @property
    def ready_to_write(self) -> bool:
        """Whether a write would be admitted now."""
        now = self._now()
        return not self._closed and self._reach.ready(now) and self._writes.ready(now)

    def overtaken(self, use: Use) -> bool:
        """Whether a write that waited for its turn need not be tried: one before it has shown that none is taken."""
        return use.write and not self._writes.healthy and self._writes.since > use.started

    def close(self) -> None:
        """Admit nothing any more."""
        self._closed = True

    async def run(
        self, operation: Callable[[], Awaitable[T]], otherwise: T, *, seconds: float, write: bool = False
    ) -> T:
        """Run what keeps to so many seconds by itself; `otherwise` when it is not admitted, or fails."""
        use = self.enter(seconds=seconds, write=write)
        if use is None:
            return otherwise
        try:
            value = await operation()
        except Exception as error:  # noqa: BLE001 - whatever a client library raises, no request fails of it
            self.failed(use, error)
            return otherwise
        self.worked(use)
        return value

    def enter(self, *, seconds: float, write: bool) -> Use | None:
        """Ask to begin; None for no. Every use but a cancelled one ends with `failed` or `worked`."""
        now = self._now()
        if self._closed or not self._reach.admits(now):
            return None
        return None if write and not self._writes.admits(now) else Use(now, write, seconds)

    def failed(self, use: Use, error: Exception) -> None:
        """Note a failure."""
        if isinstance(error, TimeoutError) and self._now() - use.started > LATE * use.seconds:
            return  # the event loop itself was held up: that says nothing about the store
        fault = self._judge(error)
        if fault is Fault.RECORD:
            self.skipped += 1
        elif use.write and fault is Fault.WRITES:
            self._reached(use)
            self._fell(
                self._writes,
                use,
                f"takes no writes ({self._describe(error)}): what is new is kept in memory",
            )
        else:
            self._fell(self._reach, use, f"is unavailable ({self._describe(error)}): working without it")

    def _fell(self, breaker: Breaker, use: Use, wrong: str) -> None:
        self._wrong = wrong
        if breaker.failed(use.started, self._now()):
            _log.warning("%s %s", self._name, wrong)

    def worked(self, use: Use) -> None:
        """Note a success."""
        self._reached(use)
        if use.write and self._writes.worked(use.started):
            _log.info("%s takes writes again", self._name)

    def _reached(self, use: Use) -> None:
        if self._reach.worked(use.started):
            _log.info("%s is available again", self._name)
