"""Room of a prompt and its answer: what fits, the bounds of an answer, the history to shorten, and the refusal of what can't fit."""

import math
from copy import copy
from dataclasses import replace
from functools import partial

from proxy.backends.profile import value_of
from proxy.compaction.budget import ContextBudget
from proxy.compaction.condensing import head_end
from proxy.compaction.ladder import LEAST_SHARE, Reduction
from proxy.compaction.middles import newest_cut, share_left
from proxy.compaction.policy import prune_limits
from proxy.core.errors import ContextOverflow, plural
from proxy.core.history.turns import is_result, newest_user
from proxy.core.jsontext import dumps, is_heavy, omit
from proxy.core.request import text_of
from proxy.emulation.prompt import protocol
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.preparing import build_prompt
from proxy.prompt import OfferedTools, Prompt
from proxy.shaping.shape import shaped
from proxy.stream.status import MOST_WINDOWS
from proxy.stream.watch import UNBOUND, Watch
from proxy.tokens.meter import Meter

_ESTIMATED = 0.97
"""Share of a budget's `enough` that may be filled going by an estimate."""
_ROOM_MARGIN = 16
_SMALLEST_ANSWER = 64
_LONG_ANSWER = 16384
"""Tokens assumed to be the longest answer of a model, unless its provider names another limit."""
_CONCLUSIONS = 2
"""Times that a model may be made to answer: once from its thinking, and once anew."""
UNREAD = 0.4
"""Share of the window up to which unread results stay whole."""
_ADVICE = {
    "policy_local": "set SPILLWAY_POLICY=local, or send `x-spillway-policy: local` (saves about {})",
    "tools": "offer fewer tools, by SPILLWAY_TOOLS_ALLOWED or the client's own `--tools` (saves up to {})",
    "system_prompt": "shorten the system prompt (saves up to {})",
    "newest_turn": "send less in the newest turn (saves up to {})",
    "history": "start a new conversation (saves up to {})",
}
"""Advice by the part of the prompt that it would shorten, easiest first."""
_NOTICEABLE = 1 / 20
"""Smallest saving worth mentioning, as a share of the excess tokens."""
_STEP = 256
"""Multiple of tokens to which a recommended window is rounded up."""


def for_results(job: Job, budget: ContextBudget) -> int:
    """Return the tokens that recall leaves for tool results, if tools are called: it would have to give way to them anyway."""
    called = any(map(is_result, job.prompt.sent))
    return budget.due - int(budget.enough * _ESTIMATED) if called else 0


async def record_message_cut(job: Job, meter: Meter) -> int:
    """Record and return the tokens cut from the newest user message because it alone exceeds the window.

    Raises:
        ContextOverflow: less than a tenth of the user's own words in it is left, and nothing of the rest was recalled.
    """
    both = newest_cut(job.prompt.sent, job.prompt.history)
    if both is None:
        return 0
    heavy = is_heavy(both)
    total, remaining = await offload_if(heavy, meter.costs, job.key, both)
    left = await offload_if(heavy, share_left, *both, partial(meter.costs, job.key))
    spare = max(0, (job.window or 0) - job.prompt.estimate.tokens)  # left empty because the estimate was uncertain
    if left + spare / max(1.0, total) < LEAST_SHARE and job.prompt.recalled.newest is None:
        why = "Cut to fit, less than a tenth of the newest message would be left."
        raise await too_long(job, meter, cut=total - remaining, why=why)
    outcome = job.outcome
    outcome.left_out, outcome.left_out_of = max(1, round(total - remaining)), round(total)
    outcome.add("message_cut", tokens=outcome.left_out, whole=outcome.left_out_of)
    return outcome.left_out


def reduction_of(job: Job, budget: ContextBudget, goal: int, meter: Meter) -> tuple[Reduction, float]:
    """Build the reduction of a job's history, and return it with the tokens of the rest of the prompt."""
    history, cost = job.prompt.history, partial(meter.costs, job.key)
    costs = cost(history)
    tokens, fixed = of_history(job.prompt), job.prompt.estimate.fixed
    # The estimate exceeds the sum of its parts by `beyond`. For a prompt of many windows that is an error in the texts, which
    # shrinks as they do, so count only the share of it that one window has.
    beyond = (tokens - sum(costs) - fixed) * min(1.0, budget.window / max(1, tokens))
    overhead = max(0.0, fixed + beyond)
    limits = prune_limits(job.settings, budget.zone)
    room = max(1.0, goal - overhead)
    gain = min(limits.minimum_gain, round(room / 4))
    limits = replace(limits, message=min(limits.message, room / 4), minimum_gain=gain)
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
    """Return the tokens of a prompt without recalled passages, which no rewrite covers."""
    return prompt.estimate.tokens - prompt.recalled.tokens


# -- bounds of an answer


def growth_needed(job: Job, delivered: int = 0) -> int:
    """Return the tokens that the next attempt has to generate before a pause gains room; `delivered` came in earlier attempts."""
    tokens, budget = job.prompt.estimate.tokens, job.budget
    return 0 if budget is None else budget.growth_needed(tokens, job.state.spare, delivered)


def bound_first(job: Job) -> None:
    """Bound the first attempt if its answer has to fit into the window too, or can't be stopped once it runs."""
    request, budget, backend, upper = job.prompt.request, job.budget, job.known_backend, job.prompt.estimate.upper
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
        _bound(job, room)


def lower_bound(job: Job, window: int) -> bool:
    """Lower the client's bound if that, rather than the prompt, does not fit; the answer is resumed where it ends.

    OpenRouter and older vLLM add the bound to the prompt when they admit a request. Returns False if nothing was changed.
    """
    room, wanted = window - job.prompt.estimate.upper, job.prompt.request.max_tokens
    if wanted is None or wanted <= room or job.prompt.answer_bound is not None:
        return False
    _bound(job, room)
    return True


def bound_to(job: Job, tokens: int) -> None:
    """Bound the answer by `tokens`, less a margin; it is resumed where it ends."""
    _bound(job, tokens)


def unbound(job: Job) -> None:
    """Undo a bound that was lowered to test what a refusal meant, and was refused as well."""
    if job.state.spent.bounded is not None and job.prompt.answer_bound is not None:
        job.prompt.fields = omit(job.prompt.fields, *job.prompt.request.bounds)
        job.prompt.answer_bound = None
    job.state.spent.counted = False


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
        return {} if job.cancels or room > _LONG_ANSWER else {request.bounds[0]: room}
    remaining = max(1, request.max_tokens - tokens_so_far)
    return dict.fromkeys(request.bounds, max(1, min(remaining, room)))


def watch_of(job: Job, *, hidden: bool) -> Watch:
    """Build the watch of a job's answer; see the fields of `Watch`."""
    request = job.prompt.request
    newest = newest_user(request.messages)
    watch = Watch(
        max_tokens=request.max_tokens,
        strip_usage=job.state.usage_requested and request.wants_usage is None,
        show_usage=request.wants_usage is True,
        cancels=job.cancels,
        hidden=hidden,
        tools=job.offers_tools,
        complete_calls=job.prompt.offer is not None,
        unknown=job.resumable,
        builtin={name: tool.passed for name, tool in job.prompt.builtin.items()},
        request=None
        if request.structured or request.choices > 1 or newest is None
        else text_of(request.messages[newest]),
        thinking_bound=job.state.thinking_bound,
        conclusions=_CONCLUSIONS if request.choices == 1 else 0,
    )
    update_room(watch, job)
    return watch


def update_room(watch: Watch, job: Job, delivered: int = 0) -> None:
    """Update a watch to the budget known now, for an answer of which `delivered` tokens came.

    If the window was unknown before, the answer can be paused from now on.
    """
    budget = job.budget
    if budget is not None:
        watch.window, watch.pause_point = budget.window, budget.pause_point
        # After a short prompt, the answer up to the pause point is always long enough.
        watch.growth = growth_needed(job, delivered) if 2 * job.prompt.estimate.upper > budget.window else 0
        watch.ceiling = MOST_WINDOWS * budget.window
        watch.resumable |= watch.unknown
        watch.unknown = job.profile.window is None


# -- a prompt that can't fit: its tokens by part, and advice with figures


async def too_long(
    job: Job, meter: Meter, *, counted: int = 0, cut: float = 0.0, why: str = "A shorter history does not make it fit."
) -> ContextOverflow:
    """Build the error for a prompt that can't be sent, with the tokens of each part, and advice.

    `counted`: its tokens as counted by the backend, or 0; `cut`: tokens already cut from the newest turn.
    """
    return await offload_if(is_heavy(job.request.body), _too_long, job, meter, counted, cut, why)


def _too_long(job: Job, meter: Meter, counted: int, cut: float, why: str) -> ContextOverflow:
    window, limit = job.window or 0, 0 if job.budget is None else job.budget.limit
    # If the backend counted, its count applies, whatever the estimate is.
    tokens = max(window, counted or job.prompt.estimate.tokens + round(cut))
    predicted = _parts(job, meter)
    is_local = job.settings.policy == "local"
    saved = 0.0 if is_local else sum(predicted.values()) - sum(_parts(_local(job), meter).values())
    predicted["newest_turn"] += cut
    scale = tokens / max(1.0, sum(predicted.values()))  # so that the parts come to the tokens of the whole
    parts = {name: round(cost * scale) for name, cost in predicted.items() if cost >= 1 or name == "newest_turn"}
    parts[max(parts, key=lambda name: parts[name])] += tokens - sum(parts.values())
    excess, savings = tokens - limit, {"policy_local": round(saved * scale), **parts}
    savings = {name: savings[name] for name in _ADVICE if savings.get(name, 0) > excess * _NOTICEABLE}
    needed, trained = math.ceil(tokens / job.settings.pause / _STEP) * _STEP, job.profile.trained_window
    advice = [_ADVICE[name].format(saving) for name, saving in savings.items()]
    subject = "model with a window" if trained is not None and trained.value < needed else "window"
    advice.append(f"use a {subject} of at least {needed} tokens")
    named = {name: name.replace("_", " ") for name in parts} | {"history": "earlier history"}
    breakdown = ", ".join(f"{cost} in the {named[name]}" for name, cost in parts.items())
    return ContextOverflow(
        # LiteLLM and others know a context overflow by the first words, which are OpenAI's.
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens: "
        f"{breakdown}. {why} Take out at least {plural(excess, 'token')}; easiest first: {'; '.join(advice)}.",
        n_prompt_tokens=tokens,
        n_ctx=window,
        n_ctx_needed=needed,
        parts=parts,
        excess=excess,
        savings=savings,
    )


def _parts(job: Job, meter: Meter) -> dict[str, float]:
    """Predict the tokens of each part of a prompt."""
    prompt, offer = job.prompt, job.prompt.offer
    costs, lead, tools = meter.costs(job.key, prompt.messages), len(prompt.system), prompt.body().get("tools")
    newest = lead + (newest_user(prompt.history) or 0)
    described = protocol(offer) if offer is not None else dumps(tools).decode() if tools else ""
    of_tools = sum(meter.costs(job.key, [{"role": "system", "content": described}])) if described else 0.0
    return {
        # With emulated tools, the system prompt contains their descriptions.
        "system_prompt": max(0.0, sum(costs[:lead]) - (of_tools if offer is not None else 0.0)),
        "tools": of_tools,
        "history": sum(costs[lead:newest]),
        "newest_turn": sum(costs[newest:]),
    }


def _local(job: Job) -> Job:
    """Return a copy of the job with the prompt that it would have under `SPILLWAY_POLICY=local`."""
    job, prompt = copy(job), job.prompt
    job.settings = job.settings.model_copy(update={"policy": "local"})
    offered = OfferedTools(*shaped(job.request, job.settings, job.window))
    job.prompt, _ = build_prompt(job, offered, emulate=prompt.offer is not None)
    if prompt.checkpoint is not None:
        job.prompt.begin_with(prompt.checkpoint)
    return job
