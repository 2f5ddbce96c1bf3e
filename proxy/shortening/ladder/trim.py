"""Trim: drop the oldest turns, then cut the middle out of oversize messages. The last resort."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from proxy.history.tooltext import Span, calls_in, results_in
from proxy.history.turns import bridge_needed, cut_points, newest_user
from proxy.neutral.request import SYSTEM_ROLES, Message
from proxy.shortening.ladder.base import Reduction

LEFT_OUT = "[Earlier messages were left out here to fit the context window.]"
_MARK = "\n[… {} characters left out here to fit the context window …]\n"
_MARKED = re.compile(re.escape(_MARK).replace(r"\{\}", r"(\d{1,12})"))
_LEAST = 400
"""Characters that are left of a text at least."""
_TRIES = 3


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
        messages[index], costs[index] = cut_middle(messages[index], costs[index], excess, reduction)
        total += costs[index]
    return replace(reduction, messages=messages, costs=costs)


def cut_middle(message: Message, cost: float, excess: float, reduction: Reduction) -> tuple[Message, float]:
    """The message with so many tokens less, or as few as may be; as it is if that would gain nothing."""
    best, best_cost = message, cost
    longest = max(map(len, _texts(message)), default=0)
    if longest <= _LEAST:
        return best, best_cost
    # Tokens are not spread evenly over the characters, so the first guess may miss.
    share = 1 - (excess + 1) / cost if cost > 0 else 0.0
    for _ in range(_TRIES):
        keep = max(_LEAST, int(longest * share))
        shorter = _with_texts(message, partial(_middle_cut, keep=keep))
        shorter_cost = sum(reduction.cost([shorter]))
        if shorter_cost < best_cost:
            best, best_cost = shorter, shorter_cost
        if best_cost <= cost - excess or keep == _LEAST:
            break
        share *= 0.9 * max(0.0, cost - excess) / shorter_cost
    return best, best_cost


def _middle_cut(text: str, *, keep: int) -> str:
    head, tail = text[: keep // 2], text[len(text) - (keep - keep // 2) :]
    # What an earlier cut took out is gone as well.
    earlier = list(_MARKED.finditer(text, len(head), max(len(head), len(text) - len(tail))))
    gone = sum(int(mark.group(1)) - len(mark.group()) for mark in earlier)
    mark = _MARK.format(len(text) - keep + gone)
    return text if len(text) <= keep + len(mark) else f"{head}{mark}{tail}"


def _pieces(role: Any, text: str) -> list[Span]:
    """Where a text may be cut, each for itself: around calls and inside of results that are text."""
    edges: list[int] = [0]
    if role == "assistant":
        for call in calls_in(text):
            edges += call.span
    elif role == "user":
        for result in results_in(text):
            edges += (result.span[0], *result.inside, result.span[1])
    edges.append(len(text))
    return list(zip(edges[::2], edges[1::2], strict=True))


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [p["text"] for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str)]
    role = message.get("role")
    return [text[start:end] for text in texts for start, end in _pieces(role, text)]


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """The message with other texts: its content, or those of the parts of its content."""
    content, role = message.get("content"), message.get("role")
    if isinstance(content, str):
        return {**message, "content": _changed(role, content, change)}
    if isinstance(content, list):
        return {**message, "content": [_with_text(role, part, change) for part in content]}
    return message


def _with_text(role: Any, part: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _changed(role, part["text"], change)}


def _changed(role: Any, text: str, change: Callable[[str], str]) -> str:
    done: list[str] = []
    after = 0
    for start, end in _pieces(role, text):
        done += (text[after:start], change(text[start:end]))
        after = end
    return "".join(done)
