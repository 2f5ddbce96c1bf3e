"""A prompt that can't fit: its tokens by part, and advice with figures. Before it comes to that, the newest message is cut."""

import math
from functools import partial

from proxy.compaction.ladder import LEAST_SHARE
from proxy.compaction.middles import newest_cut, share_left
from proxy.core.errors import ContextOverflow, plural
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import dumps, is_heavy
from proxy.core.request import leading_system
from proxy.emulation.prompt import protocol
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.preparing import build_prompt
from proxy.prompt import OfferedTools
from proxy.shaping.shape import shaped
from proxy.tokens.meter import Meter

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
    spare = max(0, (job.window or 0) - job.estimate.tokens)  # left empty because the estimate was uncertain
    if left + spare / max(1.0, total) < LEAST_SHARE and job.prompt.recalled.newest is None:
        why = "Cut to fit, less than a tenth of the newest message would be left."
        raise await too_long(job, meter, cut=total - remaining, why=why)
    sent = job.outcome.sent
    sent.left_out, sent.left_out_of = max(1, round(total - remaining)), round(total)
    job.outcome.add("message_cut", tokens=sent.left_out, whole=sent.left_out_of)
    return sent.left_out


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
    tokens = max(window, counted or job.estimate.tokens + round(cut))
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
    costs, messages, tools = meter.costs(job.key, prompt.messages), prompt.messages, prompt.body().get("tools")
    lead, newest = leading_system(messages), newest_user(messages) or 0
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
    job, profile, prompt = (
        job.fresh(settings=job.settings.model_copy(update={"policy": "local"})),
        job.profile,
        job.prompt,
    )
    job.profile = profile
    offered = OfferedTools(*shaped(job.request, job.settings, job.window))
    job.prompt, _ = build_prompt(job, offered, emulate=prompt.offer is not None)
    if prompt.checkpoint is not None:
        job.prompt = job.prompt.begun_with(prompt.checkpoint)
    return job
