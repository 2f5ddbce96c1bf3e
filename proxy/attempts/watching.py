"""Limits for the session of an answer, by what its model and its client allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from proxy.core.piece import Piece
from proxy.stages.job import Job
from proxy.stream.events import Room
from proxy.stream.watch import Watch


def watch_of(job: Job, remarks: Callable[[], Sequence[Piece]], told: Callable[[], dict[str, Any] | None]) -> Watch:
    """Return what to watch for; for the rest see the fields of `Watch`."""
    budget, request = job.budget, job.prompt.request
    return Watch(
        window=budget.window if budget is not None else 0,
        pause_point=budget.pause_point if budget is not None else 0,
        max_tokens=request.max_tokens,
        strip_usage=job.state.usage_requested and request.wants_usage is None,
        told=told,
        remarks=remarks,
        show_usage=request.wants_usage is True,
        cancels=job.cancels,
        holds_calls=job.prompt.offer is not None,
        resumable=budget is not None and job.resumable,
        unknown=budget is None and job.resumable and (request.max_tokens is not None or not request.capped),
        search=job.prompt.search,
        ceiling=room_of(job).ceiling,
    )


def room_of(job: Job) -> Room:
    """The room for the answer as it is known now."""
    budget = job.budget
    if budget is None:
        return Room(0, 0, 0, assumed=True)
    ceiling = int(job.settings.answer_windows * budget.window)
    return Room(budget.window, budget.pause_point, ceiling, assumed=job.profile.window is None)
