"""Explanations of what would be done to a request, without asking a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from proxy.compaction.policy import prune_limits
from proxy.dialects import CHAT
from proxy.emulation import protocol
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.relay import Relay
from proxy.routing import is_managed


async def explain(relay: Relay, exchange: Exchange) -> dict[str, Any]:
    """Describe what would happen to a request for chat completions.

    Raises:
        ClientError: it is malformed.
    """
    wire = await exchange.body(relay.settings.max_body)
    with exchange.watched():
        job = await relay.pipeline.prepare(exchange, relay.telemetry.silent(), CHAT, wire)
        return _explanation(job, relay)


def _explanation(job: Job, relay: Relay) -> dict[str, Any]:
    """Counts per part, the checkpoint found, what would be done, and the messages as they would be sent.

    Token figures are estimates. Of a prompt that would be shortened first, the messages are those before that.
    """
    key, budget = job.key, job.budget
    costs = relay.pipeline.counting.meter.costs(key, job.prompt.messages)
    explanation: dict[str, Any] = {
        "model": job.route.model,
        "backend": job.route.upstream.name,
        "window": None if budget is None else budget.window,
        "prompt_tokens": job.prompt.estimate.tokens,
        "prompt_tokens_upper": job.prompt.estimate.upper,
        "counted_by": job.prompt.estimate.source,
        "fill": None if budget is None else round(budget.fill(job.prompt.estimate.tokens), 4),
        "parts": _parts(job, costs),
        "tools": _tools(job, relay),
        "shaped": dict(job.outcome.shaped),
        "checkpoint": _checkpoint(job),
        "recalled": _recalled(job),
        "action": "forwarded",
        "messages": job.prompt.messages,
    }
    if not is_managed(job.route, job.settings):
        note = "The user set managed = false: it passes through untouched."
        return {**explanation, "action": "passed", "note": note}
    if budget is None:
        return {**explanation, "note": "The window is not known: the request is forwarded as it is."}
    explanation["budget"] = {"trigger": budget.brim, "target": budget.goal, "pause": budget.pause_point}
    explanation["limits"] = asdict(prune_limits(job.settings, budget.zone))
    if job.is_due:
        note = "It is due: Spillway would bring it down to about the target first, and send other messages than these."
        explanation |= {"action": "due", "note": note}
    return explanation


def _recalled(job: Job) -> dict[str, Any] | None:
    """Describe the recalled block of the newest turn, and the tokens of those of earlier turns."""
    recalled = job.prompt.recalled
    if not recalled.blocks:
        return None
    passages = () if recalled.newest is None else recalled.newest.passages
    return {
        "tokens": recalled.newest_tokens,
        "tokens_of_earlier_turns": recalled.tokens - recalled.newest_tokens,
        "passages": [
            {
                "message": len(job.prompt.system) + passage.index,
                "role": job.prompt.sent[passage.index].get("role"),
                "tokens": round(passage.tokens, 1),
                "text": passage.text,
            }
            for passage in sorted(passages, key=lambda passage: (passage.index, passage.start))
        ],
    }


def _parts(job: Job, costs: list[float]) -> dict[str, Any]:
    messages = [
        {"index": index, "role": message.get("role"), "tokens": round(cost, 1)}
        for index, (message, cost) in enumerate(zip(job.prompt.messages, costs, strict=True))
    ]
    rest = max(0.0, job.prompt.estimate.tokens - sum(costs))
    return {"messages": messages, "template_and_tools": round(rest, 1)}


def _tools(job: Job, relay: Relay) -> dict[str, Any] | None:
    """Describe how tools reach the model, and the tokens of the protocol where they are emulated."""
    if job.prompt.offer is None:
        return {"mode": "native"} if job.offers_tools else None
    return {
        "mode": "emulated",
        "protocol_tokens": relay.pipeline.counting.meter.count_text(job.key, protocol(job.prompt.offer)),
    }


def _checkpoint(job: Job) -> dict[str, Any] | None:
    found = job.prompt.checkpoint
    if found is None:
        return None
    return {
        "kind": found.kind,
        "covered_messages": found.covered,
        "replaced_by_messages": len(found.replacement),
        "tokens_before": found.tokens_before,
        "tokens_after": found.tokens_after,
        "summary": found.by,
        "created": found.created,
    }
