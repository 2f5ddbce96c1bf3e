"""Room of a prompt: the history to shorten, whether it fits, and the error if it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from proxy.compaction.budget import ContextBudget
from proxy.compaction.condensing import head_end
from proxy.compaction.ladder import LEAST_SHARE, Reduction
from proxy.compaction.middles import newest_cut, user_words
from proxy.compaction.policy import prune_limits
from proxy.core.errors import ContextOverflow
from proxy.core.history.turns import is_result, newest_user
from proxy.core.jsontext import is_heavy
from proxy.core.request import Message
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.prompt import Prompt
from proxy.tokens.meter import Meter

_HELP = (
    "Load the model with a larger window, or send less: a shorter system prompt, or fewer tools (SPILLWAY_TOOLS_ALLOWED, "
    "or the client's own choice: `--tools` of Claude Code, `--core-tools` of Qwen Code)."
)
_ESTIMATED = 0.97
"""Share of what is enough that is filled by an estimate."""


def for_results(job: Job, budget: ContextBudget) -> int:
    """Tokens that recall leaves to what tools will return, where they are called: it gives way to them in any case."""
    called = any(map(is_result, job.prompt.sent))
    return budget.brim - int(budget.enough * _ESTIMATED) if called else 0


async def cut_from_newest(job: Job, history: Sequence[Message], meter: Meter) -> tuple[int, int] | None:
    """Count the tokens cut from the newest user message in this history, and those of all of it; None: nothing was cut.

    Raises:
        ContextOverflow: less than a tenth of the user's own words in it is left.
    """
    both = None if history is job.prompt.sent else newest_cut(job.prompt.sent, history)
    if both is None:
        return None
    heavy = is_heavy(both)
    total, remaining = await offload_if(heavy, meter.costs, job.key, both)
    user_parts = await offload_if(heavy, lambda: [user_words(message) for message in both])
    words, rest = (
        await offload_if(heavy, meter.costs, job.key, user_parts) if user_parts[0]["content"] else (total, remaining)
    )
    if rest >= LEAST_SHARE * words:
        return max(1, round(total - remaining)), round(total)
    window = 0 if job.budget is None else job.budget.window
    raise ContextOverflow(
        f"The newest message alone takes about {round(total)} tokens, but the context window of {job.route.model} is "
        f"{window} tokens: {round(remaining)} tokens of it would be left, less than a tenth. Send it in parts, or load the "
        "model with a larger window.",
        param="messages",
        tokens=max(round(total), job.prompt.estimate.tokens),
        window=window,
    )


def too_long(job: Job, meter: Meter, before: int | None = None) -> ContextOverflow:
    """Build the error for a prompt that can't be sent, with the tokens of each part, and what would help.

    `before` are the tokens that it had before it was shortened; None: it was not, or the backend refused it even so.
    """
    prompt, budget = job.prompt, job.budget
    window = 0 if budget is None else budget.window
    costs = meter.costs(job.key, prompt.messages)
    lead, tokens = len(prompt.system), prompt.estimate.tokens
    newest = lead + (newest_user(prompt.history) or 0)
    tools = job.prompt.body().get("tools") or []
    parts = {
        "the system prompt": sum(costs[:lead]),
        f"{len(tools)} tools": tokens - sum(costs) if tools else 0.0,
        "the history before the newest turn": sum(costs[lead:newest]),
        "the newest turn": sum(costs[newest:]),
    }
    breakdown = ", ".join(f"{round(cost)} for {name}" for name, cost in parts.items() if cost >= 1)
    shortened = "" if before is None else f" after everything was shortened ({before} before)"
    return ContextOverflow(
        f"This conversation needs about {tokens} tokens{shortened}, but the context window of {job.route.model} is "
        f"{window} tokens: {breakdown}. {_HELP}",
        param="messages",
        tokens=tokens,
        window=window,
    )


UNREAD = 0.4
"""Share of the window up to which results that the model has not read yet stay whole."""


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
    reduction = Reduction(
        messages=history,
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
