"""Learning from refusals and from answers that end: facts about a model for all requests, or for one request alone."""

from dataclasses import replace
from typing import Any

from proxy.backends import refusals
from proxy.backends.overflow import ORIGIN, SMALLEST_WINDOW, Overflow
from proxy.backends.profile import TEMPLATE_RULES, Fact, Trust
from proxy.backends.windows import room_assumed
from proxy.job import Job
from proxy.stream.answer import Attempt


async def learn_feature(job: Job, refusal: refusals.FeatureRefusal) -> None:
    """Learn that the model lacks tools, streams or a bound on thinking, or that its chat template has a rule.

    If the client chose a `tool_choice` or a provider, the lesson applies to its request alone.
    """
    is_rule = refusal.feature in TEMPLATE_RULES
    field = "template_rules" if is_rule else str(refusal.feature)
    value = job.profile.demands | {refusal.feature} if is_rule else False
    if refusal.quoted or "provider" in job.prompt.request.body:
        lesson: dict[str, Any] = {field: Fact(value, refusal.origin, Trust.LEARNED)}
        job.profile = replace(job.profile, **lesson)
        return
    job.route.known.learn(field, value, refusal.origin)
    job.outcome.add("refused", what=refusal.feature, origin=refusal.origin, window=None)
    await job.read_profile()


async def learn_window(job: Job, overflow: Overflow) -> None:
    """Learn the window that a refusal names: for the model, or for this request alone if it does not apply to others.

    Without a figure the window is less than the prompt. The second prompt refused so shows that for the model: assumed anew
    for each request, every turn would cost a refusal.
    """
    tokens, window, known = job.estimate.tokens, None, job.route.known
    general = not (overflow.quoted or job.loads_window or "provider" in job.request.body)
    if overflow.window is not None and general:
        known.learn("window", overflow.window, ORIGIN)
        await job.read_profile()
    elif overflow.window is not None:
        window = Fact(overflow.window, ORIGIN, Trust.LEARNED)
    elif job.budget is None and tokens > SMALLEST_WINDOW:
        before, below = known.refused, int(tokens * 0.9)
        known.refused = below if general and not overflow.shared else before
        if known.held < min(before, below) and known.refused != before:
            known.learn("window", min(before, below), "refused prompts")
            await job.read_profile()
        else:
            window = Fact(below, "refused prompt", Trust.FALLBACK)
    if window is not None:
        job.profile = replace(job.profile, window=window)


async def learn_room(job: Job, attempt: Attempt) -> None:
    """Read the profile again after an answer ended with `length`; if the window is still unknown, assume one for this answer."""
    await job.read_profile()
    if job.profile.window is None:
        room = room_assumed(attempt.prompt_tokens, attempt.completion_tokens)
        job.assumed = Fact(room, "assumed", Trust.FALLBACK)
    job.record_measured()


async def learn_counted(job: Job) -> None:
    """Learn from a lowered bound that was accepted: prompt and bound have to fit together, so a figure named was the difference."""
    spent, known = job.spent, job.route.known
    if job.loads_window or "provider" in job.request.body:
        return
    known.learn("counts_answers", True, ORIGIN)
    if spent.bounded is not None and not spent.shortened:
        known.learn("window", spent.bounded + (job.prompt.request.max_tokens or 0), ORIGIN)
    await job.read_profile()
