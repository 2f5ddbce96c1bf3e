"""The faults, and the points of a request at which they strike."""

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What goes wrong. A status that comes when another one is out already comes as an error in the body."""

    REFUSED = "refused"
    RESET = "reset"
    STALLED = "stalled"
    DRIPPING = "dripping"
    GARBAGE = "garbage"
    """Bytes that are no HTTP."""
    NONSENSE = "nonsense"
    """Good HTTP, and no JSON in it."""
    HALF = "half a frame"
    """The body ends in good order, in the middle of what it says."""
    LENGTH = "wrong length"
    BUSY_LATER = "429 with Retry-After"
    BUSY = "429"
    BROKEN = "500"
    UNAVAILABLE = "503"
    ERROR = "an error inside the stream"
    UNLOADED = "model unloaded"
    OTHER = "other model loaded"


class Point(Enum):
    """When it goes wrong."""

    BEFORE = "before the first byte"
    FIRST = "in the first chunk"
    MIDDLE = "in the middle"
    COMPACTING = "while compacting"
    RESUMING = "while resuming"
    PROBING = "while probing"


STATUSES = {Fault.BUSY_LATER: 429, Fault.BUSY: 429, Fault.BROKEN: 500, Fault.UNAVAILABLE: 503}
RETRY_AFTER = {Fault.BUSY_LATER: "2", Fault.UNAVAILABLE: "1"}
"""Seconds."""


@dataclass(slots=True)
class Plan:
    """A fault for the requests of one credential; `times` is how often it strikes before it is over."""

    point: Point
    fault: Fault
    times: float = float("inf")
    struck: int = 0
    attempts: int = 0
    """Requests for the answer itself so far."""

    def strikes(self, *, summary: bool) -> bool:
        """Whether it strikes this chat request; it is told of each of them, once."""
        self.attempts += not summary
        if self.point is Point.PROBING or self.struck >= self.times:
            return False
        due = summary if self.point is Point.COMPACTING else not summary
        return due and (self.attempts > 1 if self.point is Point.RESUMING else True)


ALWAYS_BEFORE = frozenset({Point.BEFORE, Point.COMPACTING, Point.RESUMING, Point.PROBING})
"""Where it strikes before the request is answered at all."""
