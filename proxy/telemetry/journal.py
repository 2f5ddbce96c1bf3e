"""The seam inside the process: requests tell what happens to them, others listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from proxy.telemetry.events import Event, Failed, Finished
from proxy.telemetry.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Told:
    """An event, the request's id, when it was told, and what is known of the request by now.

    `at` are seconds of a clock that never goes back. `outcome` is the request's own and goes on changing: who keeps
    it copies it.
    """

    id: str
    at: float
    event: Event
    outcome: Outcome


Listener: TypeAlias = Callable[[Told], None]
"""Called at once, in order. It must be quick, and must not raise."""


class Journals:
    """Opens a journal for every request, and hands what they tell to all who listen."""

    def __init__(self, *listeners: Listener, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self._listeners = list(listeners)
        self._clock = clock

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell everything to one more from now on; call what is returned to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def open(self, request_id: str) -> Journal:
        """The journal of a request that has just come."""
        return Journal(request_id, self._publish, self._clock)

    def silent(self) -> Journal:
        """A journal that nobody reads, for a request that is only looked at."""
        return Journal("", lambda _: None, self._clock)

    def _publish(self, told: Told) -> None:
        for listener in tuple(self._listeners):
            listener(told)


class Journal:
    """What happens to one request."""

    def __init__(self, request_id: str, publish: Listener, clock: Callable[[], float]) -> None:
        self.outcome = Outcome(id=request_id)
        self.clock = clock
        self._publish = publish
        self._since = clock()
        self._closed = False

    def tell(self, event: Event) -> None:
        """Something happened."""
        now = self.clock()
        self.outcome.note(event, now - self._since)
        self._publish(Told(self.outcome.id, now, event, self.outcome))

    def answered(self, usage: Mapping[str, Any]) -> None:
        """The tokens of the whole answer."""
        self.outcome.usage = usage

    def failed(self, status: int, error: str) -> None:
        """The client gets this status and this error code, or has left."""
        self.outcome.status, self.outcome.error = status, error

    def close(self, status: int) -> None:
        """The request is over; `status` is what the client got, if no failure was noted before. Once."""
        if self._closed:
            return
        self._closed = True
        outcome = self.outcome
        outcome.status = outcome.status or status
        outcome.seconds = self.clock() - self._since
        self.tell(Finished() if outcome.error is None and outcome.status < 400 else Failed())
