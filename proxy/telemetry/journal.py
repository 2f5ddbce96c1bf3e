"""The seam inside the process: requests tell what happens to them, others listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

from proxy.telemetry.events import Answering, CheckpointKept, Event, Failed, Finished, Received, Taken
from proxy.telemetry.outcome import NOTED, Noted, Outcome
from proxy.wire.headers import Headers

ALL: frozenset[type] = frozenset(get_args(Event))
"""Every type of event."""
UNKEPT: frozenset[type] = frozenset({Received, Taken, Answering, CheckpointKept})
"""Those that are no part of what happened, or in which there is what was said."""
Listener: TypeAlias = Callable[[Outcome, Any], None]
"""Called at once, in order, with what is known of the request by now, and the event. It must be quick, and must not raise.

The outcome is the request's own and goes on changing: who keeps it copies it.
"""
Plan: TypeAlias = tuple[Noted | None, bool, tuple[Listener, ...]]
"""What is done with an event of one type: how the outcome takes it in, whether it is kept, who is told."""
Carrier: TypeAlias = Callable[[Outcome, Headers], Headers]
"""What the headers become of a request to a backend that is sent for the one with this outcome."""


_UNHEARD: dict[type, Plan] = {kind: (NOTED.get(kind), kind not in UNKEPT, ()) for kind in ALL}
_OVER: dict[type, Plan] = dict.fromkeys(ALL, (None, False, ()))
"""For what comes after the end."""


class Journals:
    """Opens a journal for every request, and hands what they tell to those who listen for it."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self.clock = self._clock = clock
        self._listeners: list[tuple[Listener, frozenset[type], bool]] = []
        self._by_type = dict(_UNHEARD)
        self._aside = dict(_UNHEARD)
        self.keeping = 0
        """Events of each request that are kept with its outcome: as many as somebody would show."""
        self.carrier: Carrier | None = None
        """Whoever has requests to backends say which trace they belong to; None: the client's own headers go on as they came."""

    def listen(self, listener: Listener, *types: type) -> Callable[[], None]:
        """Tell it all events, or those of these types, from now on; call what is returned to stop that."""
        return self._listen(listener, frozenset(types) or ALL, aside=False)

    def hear(self, heard: Mapping[type, Listener]) -> None:
        """Have each of these be told the events of its type from now on."""
        for kind, listener in heard.items():
            self.listen(listener, kind)

    def listen_aside(self, listener: Listener) -> Callable[[], None]:
        """Tell it all events of background work, and of nothing else; see `listen`."""
        return self._listen(listener, ALL, aside=True)

    def _listen(self, listener: Listener, types: frozenset[type], *, aside: bool) -> Callable[[], None]:
        entry = (listener, types, aside)
        self._listeners.append(entry)
        self._enter(entry)

        def stop() -> None:
            self._listeners.remove(entry)
            self._by_type.update(_UNHEARD)
            self._aside.update(_UNHEARD)
            for each in self._listeners:
                self._enter(each)

        return stop

    def _enter(self, entry: tuple[Listener, frozenset[type], bool]) -> None:
        listener, types, aside = entry
        for by_type in (self._aside,) if aside else (self._by_type, self._aside):
            for kind in types:
                noted, kept, listeners = by_type[kind]
                by_type[kind] = noted, kept, (*listeners, listener)

    def open(self, request_id: str) -> Journal:
        """The journal of a request that has just come."""
        return Journal(request_id, self._by_type, self._clock, self.carrier, self.keeping)

    def aside(self, request_id: str, of: Outcome) -> Journal:
        """The journal of background work after a request; it is no request, so it is never closed, and counts as none."""
        journal = Journal(request_id, self._aside, self._clock, self.carrier)
        journal.outcome.backend, journal.outcome.model = of.backend, of.model
        journal.outcome.credential, journal.outcome.ahead = of.credential, True
        return journal

    def silent(self) -> Journal:
        """A journal that nobody reads, for a request that is only looked at."""
        return Journal("", _UNHEARD, self._clock)


class Journal:
    """What happens to one request."""

    delivered = False
    """Whether the client has got all of the answer, so that it may leave."""

    def __init__(
        self,
        request_id: str,
        plans: Mapping[type, Plan],
        clock: Callable[[], float],
        carrier: Carrier | None = None,
        keeping: int = 0,
    ) -> None:
        """`plans` are those of each type of event, looked up anew each time. `keeping`: see `Journals`."""
        self.outcome = Outcome(request_id, clock())
        self.clock = clock
        self._plans = plans
        self._carrier = carrier
        self._keeping = keeping

    @property
    def silent(self) -> bool:
        """Whether nobody reads it, because the request is only looked at."""
        return not self.outcome.id

    def tell(self, event: Event) -> None:
        """Something happened. What comes after the end is no part of the request any more, and told nobody."""
        outcome, now = self.outcome, self.clock()
        noted, kept, listeners = self._plans[type(event)]
        if noted is not None:
            noted(outcome, event, now)
        if kept and len(outcome.story) < self._keeping:
            outcome.story.append((now, event))
        for listener in listeners:
            listener(outcome, event)

    def carried(self, headers: Headers) -> Headers:
        """The headers of what is sent to a backend for this request, with the trace that it belongs to."""
        return headers if self._carrier is None else self._carrier(self.outcome, headers)

    def answered(self, usage: Mapping[str, Any], *, delivered: bool = True) -> None:
        """The tokens of the whole answer, and whether the client got all of it."""
        self.outcome.usage = usage
        self.delivered = delivered

    def failed(self, status: int, error: str) -> None:
        """The client gets this status and this error code, or has left; 0: the status that went out before."""
        self.outcome.status, self.outcome.error = status, error

    def close(self, status: int) -> None:
        """The request is over; `status` is what the client got, if no failure was noted before. Once."""
        if self._plans is _OVER:
            return
        outcome = self.outcome
        outcome.status = outcome.status or status
        outcome.seconds = self.clock() - outcome.since
        self.tell(Finished() if outcome.error is None and outcome.status < 400 else Failed())
        self._plans = _OVER
