"""What there is to shorten of a job's prompt, and the room that it may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from proxy.history.turns import newest_user
from proxy.neutral.request import Message
from proxy.shortening.budget import ContextBudget
from proxy.shortening.condensing import head_end
from proxy.shortening.ladder import Reduction
from proxy.shortening.policy import prune_limits
from proxy.stages.job import Job, Prompt
from proxy.tokens.meter import Meter

UNREAD = 0.4
"""Share of the window up to which results that the model has not read yet stay whole."""


def reduction_of(job: Job, budget: ContextBudget, goal: int, meter: Meter) -> tuple[Reduction, float]:
    """What there is to reduce, and the tokens of all else in the prompt."""

    def cost(messages: Sequence[Message]) -> list[float]:
        return meter.costs(job.key, messages)

    history = job.prompt.history
    costs = cost(history)
    overhead = max(0.0, of_history(job.prompt) - sum(costs))
    limits = prune_limits(job.settings, budget.zone)
    room = max(1.0, goal - overhead)
    limits = replace(
        limits,
        message=min(limits.message, room / 4),
        minimum_gain=min(limits.minimum_gain, round(room / 4)),
    )
    reduction = Reduction(
        messages=history,
        costs=costs,
        floor=head_end(history),
        tail=newest_user(history) or 0,
        budget=room,
        enough=max(1.0, goal + budget.enough - budget.goal - overhead),
        whole=budget.zone * UNREAD,
        roomy=max(1.0, budget.pause_point - overhead),
        recallable=room if job.settings.recall != "off" and not job.undisturbed else math.inf,
        limits=limits,
        cost=cost,
    )
    return reduction, overhead


def of_history(prompt: Prompt) -> int:
    """Tokens of a prompt without what was recalled for it, which no rewrite covers."""
    return prompt.estimate.tokens - prompt.recalled.tokens
