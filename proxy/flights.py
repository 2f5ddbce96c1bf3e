"""Runs that several requests share: a request for something that is already being done waits for that."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from proxy.compaction.compaction import Compaction
from proxy.core.history.checkpoint import Checkpoint
from proxy.job import Job
from proxy.net.tasks import spawn
from proxy.summariser import Summaries


@dataclass(frozen=True, slots=True)
class Shortened:
    """A history that was shortened here, and the checkpoint made of it."""

    compaction: Compaction
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Adopted:
    """A checkpoint that another run made of this history or its beginning."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class NothingDone:
    """A history that was not shortened: nothing would be gained, or the summary that it was for could not be written."""


RunResult: TypeAlias = Shortened | Adopted | NothingDone
_Run: TypeAlias = Callable[[Job], Coroutine[Any, Any, RunResult]]


@dataclass(slots=True)
class _Flight:
    job: Job
    """Job for which the run was begun."""
    task: asyncio.Task[RunResult]
    waiting: int = 0
    goes_on: bool = False
    """Whether the run continues even if nobody waits for it, because its result serves the next turn."""


class Flights:
    """Runs in progress. A run is cancelled once nobody waits for it, unless it may continue."""

    def __init__(self, summaries: Summaries) -> None:
        self._summaries = summaries
        self._flights: dict[Hashable, _Flight] = {}

    async def ahead_of(self, job: Job, seconds: float) -> RunResult | None:
        """Return the result of a run begun ahead of time, before this job's client sent its newest message; see `join`."""
        flight = next((flight for flight in self._flights.values() if _continues(job, flight.job)), None)
        return None if flight is None else await self._wait(flight, job, seconds)

    async def join(self, key: Hashable, job: Job, run: _Run, seconds: float) -> RunResult | None:
        """Return the result of the run with this key, or None after `seconds`; begin the run if there is none."""
        flight = self._flights.get(key)
        if flight is None:
            # The run gets a copy, because this job may stop waiting and continue without it.
            twin = copy(job)
            flight = self._flights[key] = _Flight(twin, spawn(run(twin), name="compaction"))
            flight.task.add_done_callback(lambda _: self._land(flight))
        return await self._wait(flight, job, seconds)

    async def _wait(self, flight: _Flight, job: Job, seconds: float) -> RunResult | None:
        flight.waiting += 1
        own_progress, job.progress = job.progress, flight.job.progress
        try:
            timeout = None if seconds == job.settings.read_timeout else seconds
            done, _ = await asyncio.wait({flight.task}, timeout=timeout)
            flight.goes_on = flight.goes_on or not (
                done or job.settings.ahead != "auto" or self._summaries.may_work_ahead(job, job.route.upstream)
            )
            return flight.task.result() if done else None
        finally:
            job.progress = own_progress
            flight.waiting -= 1
            if not (flight.waiting or flight.goes_on or flight.task.done()):
                # Remove it first, so that a request that comes now does not join a run about to be cancelled.
                self._land(flight)
                flight.task.cancel()

    async def stop(self, scope: str, links: Sequence[bytes]) -> None:
        """Stop runs for a history of this chain for which nobody waits."""
        for flight in list(self._flights.values()):
            if flight.goes_on and flight.job.scope == scope and not set(links).isdisjoint(flight.job.prompt.links):
                flight.task.cancel()
                await asyncio.wait({flight.task})

    def _land(self, flight: _Flight) -> None:
        self._flights = {key: other for key, other in self._flights.items() if other is not flight}


def _continues(job: Job, other: Job) -> bool:
    """Return whether another job was done ahead of time for this one."""
    ahead = None if job.ahead or job.scope != other.scope else other.ahead
    return ahead is not None and ahead.expected in job.prompt.links[:-1]
