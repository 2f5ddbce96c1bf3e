"""Learning from refusals: of a model for all requests, or of one request alone."""

from dataclasses import replace
from typing import Any

from proxy.backends import refusals
from proxy.backends.overflow import ORIGIN, SMALLEST_WINDOW, Overflow
from proxy.backends.profile import TEMPLATE_RULES, Fact, Trust
from proxy.job import Job


async def learn_feature(job: Job, refusal: refusals.FeatureRefusal) -> None:
    """Learn that the model has no tools, no streams, no bound of thinking, or a chat template with a rule.

    A value of `tool_choice`, or a provider that the client picked, says nothing of other requests.
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
    """Learn the window that a refusal names, for its own request alone where it holds for no other."""
    tokens, window = job.prompt.estimate.tokens, None
    if overflow.window is not None and not (overflow.quoted or job.loads_window or "provider" in job.request.body):
        job.route.known.learn("window", overflow.window, ORIGIN)
        await job.read_profile()
    elif overflow.window is not None:
        window = Fact(overflow.window, ORIGIN, Trust.LEARNED)
    elif job.budget is None and tokens > SMALLEST_WINDOW:
        window = Fact(int(tokens * 0.9), "refused prompt", Trust.FALLBACK)  # nobody names it; it is smaller than this
    if window is not None:
        job.profile = replace(job.profile, window=window)


async def learn_counted(job: Job) -> None:
    """Learn from a lowered bound that was taken: it has to fit beside the prompt, and a figure was the window less it."""
    spent, known = job.state.spent, job.route.known
    if job.loads_window or "provider" in job.request.body:
        return
    known.learn("counts_answers", True, ORIGIN)
    if spent.bounded is not None and not spent.shortened:
        known.learn("window", spent.bounded + (job.prompt.request.max_tokens or 0), ORIGIN)
    await job.read_profile()
