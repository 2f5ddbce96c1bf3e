"""Bounds of an answer: `max_tokens` as an attempt is sent with it, where the answer has to end in time."""

from dataclasses import replace

from proxy.backends.profile import value_of
from proxy.compactor import growth_needed
from proxy.core.jsontext import omit
from proxy.job import Job
from proxy.stream.watch import UNBOUND

_ROOM_MARGIN = 16
_SMALLEST_ANSWER = 64
_LONG_ANSWER = 16384
"""Tokens assumed to be the longest answer of a model, unless its provider names another limit."""


def bound_first(job: Job) -> None:
    """Bound the first attempt if its answer has to fit into the window too, or can't be stopped once it runs."""
    request, budget, backend, upper = job.prompt.request, job.budget, job.known_backend, job.estimate.upper
    if budget is None or (request.max_tokens is None and not request.stream):
        return  # there is no bound to lower, and no stream to stop
    # A backend that shifts its window loses text silently, and without a stream nobody watches the answer. If a pause would
    # gain nothing, leave the bound alone: an answer after a shift is worth no less than one that is cut.
    shifts = backend.shifts_silently and not request.stream and job.resumable and growth_needed(job) < UNBOUND
    counted = backend.fits_answer or value_of(job.profile.counts_answers)
    if counted or shifts or (backend.refuses_long_answers and (request.max_tokens or 0) > budget.window):
        lower_bound(job, budget.window)
    if not request.stream or not job.resumable or job.cancels or job.prompt.answer_bound is not None:
        return
    # The backend goes on generating after a disconnect, so a long answer has to end at a bound rather than at a pause.
    most = value_of(job.profile.max_output) or _LONG_ANSWER
    if (room := max(budget.pause_point - upper, growth_needed(job))) < min(most, request.max_tokens or most):
        bound(job, room)


def lower_bound(job: Job, window: int) -> bool:
    """Lower the client's bound if that, rather than the prompt, does not fit; the answer is resumed where it ends.

    OpenRouter and older vLLM add the bound to the prompt when they admit a request. Returns False if nothing was changed.
    """
    room, wanted = window - job.estimate.upper, job.prompt.request.max_tokens
    if wanted is None or wanted <= room or job.prompt.answer_bound is not None:
        return False
    bound(job, room)
    return True


def bound(job: Job, room: int) -> None:
    """Bound the answer so that it fits into `room` tokens; it is resumed where it ends."""
    job.prompt = replace(job.prompt, fields=job.prompt.fields | _bounds(job, room, 0))


def unbound(job: Job) -> None:
    """Undo a bound that was lowered to test what a refusal meant, and was refused as well."""
    if job.spent.bounded is not None:
        job.prompt = replace(job.prompt, fields=omit(job.prompt.fields, *job.prompt.request.bounds))
    job.spent.counted = False


def bound_resumed(job: Job, prompt_tokens: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt to continue an answer.

    `prompt_tokens` is an upper bound of its prompt, and `tokens_so_far` the length of the answer before it.
    """
    budget = job.budget
    if budget is None:
        return {}
    if job.cancels and job.known_backend.ends_at_window:
        # For a new model the estimate may be far too high, and the bound would cut a call or a word in the middle.
        prompt_tokens = 0
    room = (budget.window if job.cancels else budget.pause_point) - prompt_tokens
    return _bounds(job, max(room, growth_needed(job, tokens_so_far)), tokens_so_far)


def _bounds(job: Job, room: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt: by the client's bound less `tokens_so_far`, and by the room.

    All in tokens; none if the client set no bound and an attempt can be left at any time.
    """
    request, room = job.prompt.request, max(_SMALLEST_ANSWER, room - _ROOM_MARGIN)
    if request.max_tokens is None:
        return {} if job.cancels or room > _LONG_ANSWER else {request.bounds[0]: room}
    remaining = max(1, request.max_tokens - tokens_so_far)
    return dict.fromkeys(request.bounds, max(1, min(remaining, room)))
