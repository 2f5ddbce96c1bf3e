"""Shaping of prompts by the policy, off the event loop where it is heavy, with the tokens saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.compaction.ladder.cap import within_limits
from proxy.compaction.policy import ResultLimits, prune_limits
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import is_heavy
from proxy.core.request import Message, Request
from proxy.emulation import Offer
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.shaping.shape import ShapedPart, narrowed
from proxy.tokens.counting import Counting


def limits_from_the_first(job: Job) -> ResultLimits | None:
    """The limits of results, where they hold from the first request on."""
    window = job.profile.window
    limits = None if window is None else prune_limits(job.settings, window.value)
    return limits.results if limits is not None and limits.from_the_first else None


async def limited(messages: Sequence[Message], limits: ResultLimits) -> Sequence[Message]:
    """A history with its results within the limits."""
    return await offload_if(is_heavy(messages), within_limits, messages, limits)


async def record_savings(job: Job, counting: Counting, edited: Sequence[Message], parts: Sequence[ShapedPart]) -> None:
    """Record the tokens saved on a prompt that was shaped.

    `edited`: the history before its results were brought within the limits; `parts`: the shaped parts in front of it.
    """
    shown, checkpoint = job.prompt.shown, job.prompt.checkpoint

    async def tokens(messages: Sequence[Message]) -> float:
        return sum(await offload_if(is_heavy(messages), counting.meter.costs, job.key, messages))

    saved: dict[str, int] = {step.kind: round(await tokens(step.removed) - await tokens(step.added)) for step in parts}
    begins = len(shown) if shown is edited else 0 if checkpoint is None else checkpoint.covered
    if changed := [at for at in range(begins, len(shown)) if shown[at] is not edited[at]]:
        before = await tokens([edited[at] for at in changed])
        saved["results"] = round(before - await tokens([shown[at] for at in changed]))
    if saved:
        job.prompt.shaped = tuple(saved.items())
        job.outcome.record_shaped(job.prompt.shaped)


def narrowing(
    job: Job, request: Request, offer: Offer | None, sent: Sequence[Message], checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """Shorten the tools of a request whose history is partly covered; empty where nothing is gained.

    What was called is looked up in the covered part alone: so the tools change only where the prompt does anyway.
    """
    window = job.profile.window
    if checkpoint is None or offer is not None or window is None:
        return {}
    return narrowed(request, sent[: checkpoint.covered], job.settings, window.value)
