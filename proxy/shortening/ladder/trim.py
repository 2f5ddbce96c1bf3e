"""Trim: drop the oldest turns, then cut the middle out of oversize messages. The last resort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from proxy.history.turns import bridge_needed, cut_points, newest_user
from proxy.neutral.request import SYSTEM_ROLES, Message
from proxy.shortening.ladder.base import Reduction
from proxy.shortening.middles import cut_middle

LEFT_OUT = "[Earlier messages were left out here to fit the context window.]"


def drop_oldest(reduction: Reduction) -> Reduction:
    """Drop whole turns from `floor` on until the budget is kept; never the tail.

    As many as it takes, all of them if that is not enough; where user and assistant would no longer take
    turns, a message that says what happened stands in between.
    """
    # Tokens of everything before an index.
    upto = [0.0, *accumulate(reduction.costs)]
    mark_cost = sum(reduction.cost([{"role": "assistant", "content": LEFT_OUT}]))
    speakers = _next_speakers(reduction.messages)
    before = reduction.messages[reduction.floor - 1] if reduction.floor else None
    least, chosen = upto[-1], None
    for end in cut_points(reduction.messages):
        if not reduction.floor < end <= reduction.tail:
            continue
        marks = _marks(before, speakers[end])
        total = upto[-1] - (upto[end] - upto[reduction.floor]) + mark_cost * len(marks)
        if total < least:
            least, chosen = total, (end, marks)
        if total <= reduction.budget:
            break
    return reduction if chosen is None else _without(reduction, *chosen)


def _next_speakers(messages: Sequence[Message]) -> list[Message | None]:
    """For every index and the end: the next message from there on that is not the system's."""
    following: Message | None = None
    speakers = [following]
    for message in reversed(messages):
        following = following if message.get("role") in SYSTEM_ROLES else message
        speakers.append(following)
    return speakers[::-1]


def _marks(before: Message | None, after: Message | None) -> list[Message]:
    role = bridge_needed(before, [after] if after is not None else [])
    return [{"role": role, "content": LEFT_OUT}] if role else []


def _without(reduction: Reduction, end: int, marks: list[Message]) -> Reduction:
    messages = [*reduction.messages[: reduction.floor], *marks, *reduction.messages[end:]]
    tail = reduction.tail - (end - reduction.floor) + len(marks)
    return replace(reduction, messages=messages, costs=reduction.cost(messages), tail=tail)


def cut_middles(reduction: Reduction) -> Reduction:
    """Cut the middle out of the largest texts until the budget is kept; pinned messages last.

    Pinned are the head and the newest user message. Tool calls stay whole: half of their JSON is none. So do the marks
    of results as text.
    """
    messages = list(reduction.messages)
    costs = list(reduction.costs)
    user, total = newest_user(messages), sum(costs)
    for index in sorted(range(len(messages)), key=lambda i: (i < reduction.floor or i == user, -costs[i])):
        excess = total - reduction.budget
        if excess <= 0:
            break
        total -= costs[index]
        messages[index], costs[index] = cut_middle(messages[index], costs[index], excess, reduction.cost)
        total += costs[index]
    return replace(reduction, messages=messages, costs=costs)
