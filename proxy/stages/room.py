"""Whether a prompt has room, and what its client is told if it has none."""

from __future__ import annotations

from proxy.errors import ContextOverflow
from proxy.history.turns import newest_user
from proxy.stages.job import Job
from proxy.tokens.meter import Meter

_HELP = (
    "Load the model with a larger window, or send less: a shorter system prompt, or fewer tools (SPILLWAY_TOOLS_ALLOWED, "
    "or the client's own choice: `--tools` of Claude Code, `--core-tools` of Qwen Code)."
)


def cannot_fit(job: Job, window: int) -> bool:
    """Whether sending is pointless: the backend would refuse, or cut in silence where it is one that does.

    An honest backend decides doubtful cases itself; its refusal teaches the window and is answered.
    """
    backend = job.route.upstream.prober.known_backend
    doubt = 1.0 if backend is not None and backend.shifts_silently else 1.1
    return job.prompt.estimate.tokens >= window * doubt


def too_long(job: Job, meter: Meter, before: int | None = None) -> ContextOverflow:
    """The error for a prompt that can't be sent, with what takes how much of it, and what would help.

    `before` are the tokens that it had before it was shortened; None: it was not, or the backend refused it even so.
    """
    prompt, budget = job.prompt, job.budget
    window = 0 if budget is None else budget.window
    costs = meter.costs(job.key, prompt.messages)
    lead, tokens = len(prompt.system), prompt.estimate.tokens
    newest = lead + (newest_user(prompt.history) or 0)
    tools = job.body().get("tools") or []
    parts = {
        "the system prompt": sum(costs[:lead]),
        f"{len(tools)} tools": tokens - sum(costs) if tools else 0.0,
        "the history before the newest turn": sum(costs[lead:newest]),
        "the newest turn": sum(costs[newest:]),
    }
    told = ", ".join(f"{round(cost)} for {name}" for name, cost in parts.items() if cost >= 1)
    shortened = "" if before is None else f" after everything was shortened ({before} before)"
    return ContextOverflow(
        f"This conversation needs about {tokens} tokens{shortened}, but the context window of {job.route.model} is "
        f"{window} tokens: {told}. {_HELP}",
        param="messages",
        tokens=tokens,
        window=window,
    )
