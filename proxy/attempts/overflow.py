"""Refusal of a prompt that can't fit: its tokens by parts, and what would make it fit, in figures."""

from __future__ import annotations

import math
from copy import copy

from proxy.core.errors import ContextOverflow
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import dumps, is_heavy
from proxy.emulation.prompt import protocol
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.prompt import OfferedTools, build_prompt, rewrite
from proxy.shaping.shape import shaped
from proxy.tokens.meter import Meter

_NAMES = {
    "system_prompt": "system prompt",
    "tools": "tools",
    "history": "earlier history",
    "newest_turn": "newest turn",
}
"""Parts of a prompt, in its order."""
_ADVICE = {
    "policy_local": "set SPILLWAY_POLICY=local, or send `x-spillway-policy: local` (saves about {})",
    "tools": "offer fewer tools, by SPILLWAY_TOOLS_ALLOWED or the client's own `--tools` (saves up to {})",
    "system_prompt": "shorten the system prompt (saves up to {})",
    "newest_turn": "send less in the newest turn (saves up to {})",
    "history": "start a new conversation (saves up to {})",
}
"""What would help, easiest first, by what it would shorten."""
_NOTICEABLE = 1 / 20
"""Share of the tokens that are too many from which it is worth a word that something saves them."""
_STEP = 256
"""Windows are named in multiples of so many tokens."""


async def too_long(
    job: Job, meter: Meter, *, counted: int = 0, cut: float = 0.0, why: str = "A shorter history does not make it fit."
) -> ContextOverflow:
    """Build the error for a prompt that can't be sent, with the tokens of each part, and what would help.

    `counted`: its tokens as the backend counts them, where it said so; `cut`: tokens that were left out of the newest turn.
    """
    return await offload_if(is_heavy(job.request.body), _too_long, job, meter, counted, cut, why)


def _too_long(job: Job, meter: Meter, counted: int, cut: float, why: str) -> ContextOverflow:
    window, limit = job.window or 0, 0 if job.budget is None else job.budget.limit
    # A backend that refused it has the last word, whatever the estimate is.
    tokens = max(window, counted or job.prompt.estimate.tokens + round(cut))
    predicted = _parts(job, meter)
    saved = (
        sum(predicted.values()) - sum(_parts(_local(job), meter).values()) if job.settings.policy != "local" else 0.0
    )
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
    breakdown = ", ".join(f"{cost} in the {_NAMES[name]}" for name, cost in parts.items())
    return ContextOverflow(
        # LiteLLM and others know a context overflow by the first words, which are OpenAI's.
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens: "
        f"{breakdown}. {why} At least {excess} tokens have to go. What helps, easiest first: {'; '.join(advice)}.",
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
        # Where tools are emulated, they are described in it.
        "system_prompt": max(0.0, sum(costs[:lead]) - (of_tools if offer is not None else 0.0)),
        "tools": of_tools,
        "history": sum(costs[lead:newest]),
        "newest_turn": sum(costs[newest:]),
    }


def _local(job: Job) -> Job:
    """The job with the prompt that it would have under `SPILLWAY_POLICY=local`."""
    job, prompt = copy(job), job.prompt
    job.settings = job.settings.model_copy(update={"policy": "local"})
    offered = OfferedTools(*shaped(job.request, job.settings, job.window))
    job.prompt, _ = build_prompt(job, offered, emulate=prompt.offer is not None)
    if prompt.checkpoint is not None:
        rewrite(job, prompt.checkpoint)
    return job
