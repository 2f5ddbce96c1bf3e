"""Breakdown of a prompt: system messages, tools, summary, recalled passages, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.addons.live.record import Parts
from proxy.backends.profile import ModelKey
from proxy.compaction.summary import is_bridge
from proxy.core.history.marks import RECALLED, RECALLED_END, is_summary
from proxy.core.jsontext import HEAVY, loads
from proxy.core.request import Message, leading_system, text_of
from proxy.net.tasks import offload_if
from proxy.tokens.meter import Meter


async def parsed(body: bytes) -> Mapping[str, Any]:
    """The body of a request that was sent, or came; empty if it is none that holds messages."""
    value = await offload_if(len(body) > HEAVY, loads, body)
    return value if isinstance(value, dict) and isinstance(value.get("messages"), list) else {}


async def parts_in(meter: Meter, key: ModelKey, body: bytes, total: int) -> Parts | None:
    """Break down a forwarded body whose prompt has `total` tokens; None if it has no messages."""
    value = await parsed(body)
    if not value:
        return None
    messages: Sequence[Message] = value["messages"]
    await meter.measure(key, value)  # which counts what is not known any more, not on the loop
    costs = meter.costs(key, messages)

    def count(text: str) -> int:
        return meter.count_text(key, text)

    return _parts(messages, costs, total, count, tools=bool(value.get("tools") or value.get("functions")))


def _parts(
    messages: Sequence[Message], costs: Sequence[float], total: int, count: Callable[[str], int], *, tools: bool
) -> Parts:
    """`costs` are those of each message, by estimate; what is left of `total` are the tools, or else the template."""
    lead = leading_system(messages)
    summary = recalled = 0.0
    for at, message in enumerate(messages):
        if is_summary(message) or is_bridge(messages, at):
            summary += costs[at]
        elif block := block_in(message):
            recalled += min(costs[at], count(block))
    system = sum(costs[:lead])
    scale = min(1.0, total / max(1.0, sum(costs)))
    held = [round(each * scale) for each in (system, summary, recalled)]
    others = round(sum(costs) * scale) - sum(held)
    rest = total - sum(held) - others
    return Parts(
        system=held[0] if tools else held[0] + (rest if lead else 0),
        tools=rest if tools else 0,
        summary=held[1],
        recalled=held[2],
        tail=others if tools or lead else others + rest,
    )


def block_in(message: Message) -> str:
    """Return the block recalled in front of a user's words, with its marks; empty if there is none."""
    if message.get("role") != "user":
        return ""
    text = text_of(message)
    end = text.find(RECALLED_END) if text.startswith(RECALLED) else -1
    return text[: end + len(RECALLED_END)] if end >= 0 else ""
