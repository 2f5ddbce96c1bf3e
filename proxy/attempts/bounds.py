"""Bounds on the length of an attempt's answer: the client's, Spillway's own where room demands one, and what its session watches for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from proxy.compaction.budget import ContextBudget
from proxy.core.piece import Piece
from proxy.job import Job
from proxy.stream.events import Room
from proxy.stream.watch import Watch

_ROOM_MARGIN = 16
_SMALLEST_ANSWER = 64
_LONG_ANSWER = 16384
"""Tokens that no model writes in one go unless its provider says that it may."""


def bound_first(job: Job) -> None:
    """Bound the first attempt where the answer has to fit as well, or can't be stopped once it runs."""
    request = job.prompt.request
    if request.max_tokens is None and not request.stream:
        return  # there is no bound to be lowered, and nothing to be stopped
    budget = job.budget
    if budget is None:
        return
    if _answer_must_fit(job) or _would_be_refused(job, budget.window):
        lower_bound(job, budget.window)
    if request.stream and job.resumable and not job.cancels:
        _stop_by_bound(job, budget)


def lower_bound(job: Job, window: int) -> bool:
    """Lower a bound that, not the prompt, is what does not fit; the answer is resumed from there.

    OpenRouter and older vLLM add it to the prompt when they admit a request.
    """
    room = window - job.prompt.estimate.upper
    wanted = job.prompt.request.max_tokens
    if wanted is None or wanted <= room or job.prompt.answer_bound is not None:
        return False
    _bound(job, room)
    return True


def bounded_answer(job: Job, room: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt: by the client's bound less `tokens_so_far`, and by the room.

    All in tokens; none if the client set no bound and an attempt can be left at any time.
    """
    request = job.prompt.request
    room = max(_SMALLEST_ANSWER, room - _ROOM_MARGIN)
    if request.max_tokens is None:
        return {} if job.cancels else {request.bounds[0]: room}
    remaining = max(1, request.max_tokens - tokens_so_far)
    return dict.fromkeys(request.bounds, max(1, min(remaining, room)))


def bound_resumed(job: Job, prompt_tokens: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt to continue an answer: `prompt_tokens` at most, and of the answer `tokens_so_far`."""
    budget, backend = job.budget, job.known_backend
    if budget is None:
        return {}
    if job.cancels and backend is not None and backend.ends_at_window:
        prompt_tokens = 0  # of a new model that may be far too high: no call, or word, is to end there in its middle
    return bounded_answer(job, (budget.window if job.cancels else budget.pause_point) - prompt_tokens, tokens_so_far)


def _stop_by_bound(job: Job, budget: ContextBudget) -> None:
    """Have an answer that would be paused end at a bound instead: the backend generates on after a disconnect.

    Only where it may get that long: what models write in one go is bounded by the provider, or by habit.
    """
    room = budget.pause_point - job.prompt.estimate.upper
    most = job.profile.max_output.value if job.profile.max_output is not None else _LONG_ANSWER
    if room < min(most, job.prompt.request.max_tokens or most) and job.prompt.answer_bound is None:
        _bound(job, room)


def _bound(job: Job, room: int) -> None:
    fields = bounded_answer(job, room, 0)
    job.prompt.fields |= fields
    job.prompt.answer_bound = min(fields.values(), default=None)


def _answer_must_fit(job: Job) -> bool:
    """Return whether the answer has to fit as well, because what does not fit is lost in silence.

    Where the window shifts, nobody watches an answer that comes whole.
    """
    backend = job.known_backend
    if backend is None:
        return False
    return backend.fits_answer or (backend.shifts_silently and not job.prompt.request.stream)


def _would_be_refused(job: Job, window: int) -> bool:
    """Return whether the backend refuses so large a `max_tokens` before it looks at the prompt."""
    backend, wanted = job.known_backend, job.prompt.request.max_tokens
    return backend is not None and backend.refuses_long_answers and wanted is not None and wanted > window


def watch_of(
    job: Job, remarks: Callable[[], Sequence[Piece]], details: Callable[[], dict[str, Any] | None], *, hidden: bool
) -> Watch:
    """Return what to watch for; for the rest see the fields of `Watch`."""
    budget, request = job.budget, job.prompt.request
    return Watch(
        window=budget.window if budget is not None else 0,
        pause_point=budget.pause_point if budget is not None else 0,
        max_tokens=request.max_tokens,
        strip_usage=job.state.usage_requested and request.wants_usage is None,
        usage_details=details,
        remarks=remarks,
        show_usage=request.wants_usage is True,
        cancels=job.cancels,
        hidden=hidden,
        complete_calls=job.prompt.offer is not None,
        resumable=budget is not None and job.resumable,
        unknown=budget is None and job.resumable,
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
