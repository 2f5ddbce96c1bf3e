"""Whether a prompt has room, and what its client is told if it has none."""

from __future__ import annotations

from proxy.stages.job import Job


def cannot_fit(job: Job, window: int) -> bool:
    """Whether sending is pointless: the backend would refuse, or cut in silence where it is one that does.

    An honest backend decides doubtful cases itself; its refusal teaches the window and is answered.
    """
    backend = job.route.upstream.prober.known_backend
    doubt = 1.0 if backend is not None and backend.shifts_silently else 1.1
    return job.prompt.estimate.tokens >= window * doubt


def overflow_text(job: Job, before: int) -> str:
    """What a client is told whose prompt can't be sent; it had so many tokens `before` it was shortened."""
    budget = job.budget
    window = budget.window if budget is not None else 0
    return (
        f"This conversation needs about {job.prompt.estimate.tokens} tokens after everything was shortened "
        f"({before} before), but the context window of {job.route.model} is {window} tokens. What remains are "
        "the system prompt, the tools and the newest turn: shorten one of them, send fewer tools, or load the "
        "model with a larger window."
    )
