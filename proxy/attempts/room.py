"""Room of a prompt and its answer: what fits, the bounds of an answer, and the history to shorten."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from proxy.attempts.overflow import too_long
from proxy.backends.profile import value_of
from proxy.compaction.budget import ContextBudget
from proxy.compaction.condensing import head_end
from proxy.compaction.ladder import LEAST_SHARE, Reduction
from proxy.compaction.middles import newest_cut, share_left
from proxy.compaction.policy import prune_limits
from proxy.core.history.turns import is_result, newest_user
from proxy.core.jsontext import is_heavy
from proxy.core.request import text_of
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.prompt import Prompt
from proxy.stream.events import Room
from proxy.stream.status import MOST_WINDOWS
from proxy.stream.watch import Watch
from proxy.tokens.meter import Meter

_ESTIMATED = 0.97
"""Share of what is enough that is filled by an estimate."""
_ROOM_MARGIN = 16
_SMALLEST_ANSWER = 64
_LONG_ANSWER = 16384
"""Tokens that no model writes in one go unless its provider says that it may."""
_CONCLUSIONS = 2
"""Times that a model may be made to answer: from a thought, and anew."""
UNREAD = 0.4
"""Share of the window up to which results that the model has not read yet stay whole."""


def for_results(job: Job, budget: ContextBudget) -> int:
    """Tokens that recall leaves to what tools will return, where they are called: it gives way to them in any case."""
    called = any(map(is_result, job.prompt.sent))
    return budget.brim - int(budget.enough * _ESTIMATED) if called else 0


async def record_message_cut(job: Job, meter: Meter) -> int:
    """Record and return the tokens cut from the newest user message because it alone exceeds the window.

    Raises:
        ContextOverflow: less than a tenth of the user's own words in it is left.
    """
    both = newest_cut(job.prompt.sent, job.prompt.history) if job.prompt.history is not job.prompt.sent else None
    if both is None:
        return 0
    heavy = is_heavy(both)
    total, remaining = await offload_if(heavy, meter.costs, job.key, both)
    left = await offload_if(heavy, share_left, *both, partial(meter.costs, job.key))
    spare = max(0, room_of(job).window - job.prompt.estimate.tokens)  # that an unsure estimate left empty
    if left + spare / max(1.0, total) < LEAST_SHARE:
        why = "Cut to fit, less than a tenth of the newest message would be left."
        raise await too_long(job, meter, cut=total - remaining, why=why)
    outcome = job.outcome
    outcome.left_out, outcome.left_out_of = max(1, round(total - remaining)), round(total)
    outcome.add("message_cut", tokens=outcome.left_out, whole=outcome.left_out_of)
    return outcome.left_out


def reduction_of(job: Job, budget: ContextBudget, goal: int, meter: Meter) -> tuple[Reduction, float]:
    """Build the reduction of a job's history, and count the tokens of all else in the prompt."""
    history, cost = job.prompt.history, partial(meter.costs, job.key)
    costs = cost(history)
    overhead = max(0.0, of_history(job.prompt) - sum(costs))
    limits = prune_limits(job.settings, budget.zone)
    room = max(1.0, goal - overhead)
    limits = replace(
        limits, message=min(limits.message, room / 4), minimum_gain=min(limits.minimum_gain, round(room / 4))
    )
    newest = newest_user(job.prompt.sent)
    reduction = Reduction(
        messages=history,
        uncut=None if newest is None else job.prompt.sent[newest],
        costs=costs,
        floor=head_end(history),
        budget=room,
        enough=max(1.0, goal + budget.enough - budget.goal - overhead),
        unread=budget.zone * UNREAD,
        roomy=max(1.0, budget.pause_point - overhead),
        recallable=room if job.settings.recall != "off" and not job.undisturbed else math.inf,
        limits=limits,
        cost=cost,
    )
    return reduction, overhead


def is_worth_a_summary(job: Job, budget: ContextBudget) -> bool:
    """Return whether a model may be asked to shorten the history, which takes a while, by its size alone."""
    return of_history(job.prompt) - budget.fixed >= prune_limits(job.settings, budget.zone).worth


def of_history(prompt: Prompt) -> int:
    """Tokens of a prompt without what was recalled for it, which no rewrite covers."""
    return prompt.estimate.tokens - prompt.recalled.tokens


# -- bounds of an answer


def bound_first(job: Job) -> None:
    """Bound the first attempt where the answer has to fit as well, or can't be stopped once it runs."""
    request, budget, backend, upper = job.prompt.request, job.budget, job.known_backend, job.prompt.estimate.upper
    if budget is None or (request.max_tokens is None and not request.stream):
        return  # there is no bound to be lowered, and nothing to be stopped
    if backend is not None:
        # What does not fit may be lost in silence; where the window shifts, nobody watches an answer that is not streamed.
        must_fit = backend.fits_answer or (backend.shifts_silently and not request.stream)
        if must_fit or (backend.refuses_long_answers and (request.max_tokens or 0) > budget.window):
            lower_bound(job, budget.window)
    if not request.stream or not job.resumable or job.cancels or job.prompt.answer_bound is not None:
        return
    # The backend generates on after a disconnect: an answer that may get so long has to end at a bound instead of a pause.
    most = value_of(job.profile.max_output) or _LONG_ANSWER
    if budget.pause_point - upper < min(most, request.max_tokens or most):
        _bound(job, budget.pause_point - upper)


def lower_bound(job: Job, window: int) -> bool:
    """Lower a bound that, not the prompt, is what does not fit; the answer is resumed from there.

    OpenRouter and older vLLM add it to the prompt when they admit a request.
    """
    room, wanted = window - job.prompt.estimate.upper, job.prompt.request.max_tokens
    if wanted is None or wanted <= room or job.prompt.answer_bound is not None:
        return False
    _bound(job, room)
    return True


def bound_resumed(job: Job, prompt_tokens: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt to continue an answer: `prompt_tokens` at most, and of the answer `tokens_so_far`."""
    budget, backend = job.budget, job.known_backend
    if budget is None:
        return {}
    if job.cancels and backend is not None and backend.ends_at_window:
        prompt_tokens = 0  # of a new model that may be far too high: no call, or word, is to end there in its middle
    return _bounds(job, (budget.window if job.cancels else budget.pause_point) - prompt_tokens, tokens_so_far)


def _bound(job: Job, room: int) -> None:
    fields = _bounds(job, room, 0)
    job.prompt.fields |= fields
    job.prompt.answer_bound = min(fields.values(), default=None)


def _bounds(job: Job, room: int, tokens_so_far: int) -> dict[str, int]:
    """Build the options that bound an attempt: by the client's bound less `tokens_so_far`, and by the room.

    All in tokens; none if the client set no bound and an attempt can be left at any time.
    """
    request, room = job.prompt.request, max(_SMALLEST_ANSWER, room - _ROOM_MARGIN)
    if request.max_tokens is None:
        return {} if job.cancels else {request.bounds[0]: room}
    remaining = max(1, request.max_tokens - tokens_so_far)
    return dict.fromkeys(request.bounds, max(1, min(remaining, room)))


def watch_of(job: Job, *, hidden: bool) -> Watch:
    """Return what to watch for; for the rest see the fields of `Watch`."""
    request, room = job.prompt.request, room_of(job)
    newest = newest_user(request.messages)
    return Watch(
        window=room.window,
        pause_point=room.pause_point,
        ceiling=room.ceiling,
        max_tokens=request.max_tokens,
        strip_usage=job.state.usage_requested and request.wants_usage is None,
        show_usage=request.wants_usage is True,
        cancels=job.cancels,
        hidden=hidden,
        complete_calls=job.prompt.offer is not None,
        resumable=room.window > 0 and job.resumable,
        unknown=not room.window and job.resumable,
        builtin={name: tool.passed for name, tool in job.prompt.builtin.items()},
        request=None
        if request.structured or request.choices > 1 or newest is None
        else text_of(request.messages[newest]),
        thinking_bound=job.state.thinking_bound,
        conclusions=_CONCLUSIONS if request.choices == 1 else 0,
    )


def room_of(job: Job) -> Room:
    """The room for the answer as it is known now."""
    budget = job.budget
    if budget is None:
        return Room(0, 0, 0, assumed=True)
    ceiling = MOST_WINDOWS * budget.window
    return Room(budget.window, budget.pause_point, ceiling, assumed=job.profile.window is None)
