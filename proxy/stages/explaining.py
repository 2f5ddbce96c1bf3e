"""What would happen to a chat request, without asking a model."""

from __future__ import annotations

from typing import Any

from proxy.core.emulation import protocol
from proxy.core.policy import limits_for
from proxy.stages.compacting import Compactor
from proxy.stages.counting import Counting
from proxy.stages.turn import Turn


async def explain(turn: Turn, counting: Counting, compactor: Compactor) -> dict[str, Any]:
    """Counts per part, the checkpoint found, what would be done, and the messages as they would be sent.

    Token figures are estimates. A summary is stood in for by a text of its greatest length.
    """
    key, budget = turn.key, turn.budget
    costs = counting.meter.costs(key, turn.messages)
    told: dict[str, Any] = {
        "model": turn.route.model,
        "backend": turn.route.upstream.name,
        "window": None if budget is None else budget.window,
        "prompt_tokens": turn.estimate.tokens,
        "prompt_tokens_upper": turn.estimate.upper,
        "counted_by": turn.estimate.source,
        "fill": None if budget is None else round(budget.fill(turn.estimate.tokens), 4),
        "parts": _parts(turn, costs),
        "tools": _tools(turn, counting),
        "checkpoint": _checkpoint(turn),
        "action": "forwarded",
        "rungs": [],
        "messages": turn.messages,
    }
    if budget is None:
        return {**told, "note": "The window is not known: the request is forwarded as it is."}
    told["budget"] = {
        "trigger": int(budget.window * budget.trigger),
        "target": budget.goal,
        "pause": budget.pause_point,
    }
    told["limits"] = {
        name: getattr(limits, name)
        for limits in (limits_for(turn.options.policy, budget.window),)
        for name in limits.__slots__
    }
    if not budget.needs_compaction(turn.estimate.tokens, turn.estimate.upper):
        return told
    done = await compactor.rehearse(turn)
    if done is None or not done.covered:
        return {**told, "note": "It is due for compaction, but nothing can be taken out of it."}
    return {
        **told,
        "action": done.kind,
        "rungs": list(done.rungs),
        "before": round(done.before),
        "after": round(done.after),
        "messages": [*turn.system, *done.messages],
    }


def _parts(turn: Turn, costs: list[float]) -> dict[str, Any]:
    messages = [
        {"index": index, "role": message.get("role"), "tokens": round(cost, 1)}
        for index, (message, cost) in enumerate(zip(turn.messages, costs, strict=True))
    ]
    rest = max(0.0, turn.estimate.tokens - sum(costs))
    return {"messages": messages, "template_and_tools": round(rest, 1)}


def _tools(turn: Turn, counting: Counting) -> dict[str, Any] | None:
    """How the tools reach the model, and what telling it of them costs where it has none of its own."""
    if turn.offer is None:
        return {"mode": "native"} if turn.offers_tools else None
    return {"mode": "emulated", "protocol_tokens": counting.meter.count_text(turn.key, protocol(turn.offer))}


def _checkpoint(turn: Turn) -> dict[str, Any] | None:
    found = turn.checkpoint
    if found is None:
        return None
    return {
        "kind": found.kind,
        "covered_messages": found.covered,
        "replaced_by_messages": len(found.replacement),
        "tokens_before": found.tokens_before,
        "tokens_after": found.tokens_after,
        "created": found.created,
    }
