"""Trim: drop the oldest turns, or cut the middle out of long messages: programs' blocks and stale system messages, then users' words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from proxy.compaction.ladder.base import Reduction
from proxy.compaction.middles import cut_middle
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import bridge_needed, cut_points, is_result, is_system, newest_user
from proxy.core.request import SYSTEM_ROLES, Message

_STALE = 1 / 4
"""What is left of a system message behind which another stands, as a share of what is left of others."""
OMITTED = "[Earlier messages were left out here to fit the context window.]"


def drop_oldest(reduction: Reduction) -> Reduction:
    """Drop whole turns from `floor` on until the budget is kept; never the tail.

    As many as it takes, all of them if that is not enough; where user and assistant would no longer take
    turns, a message that says what happened stands in between.
    """
    # Tokens of everything before an index.
    upto = [0.0, *accumulate(reduction.costs)]
    mark_cost = sum(reduction.cost([{"role": "assistant", "content": OMITTED}]))
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
    return [{"role": role, "content": OMITTED}] if role else []


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


def cut_oversize(reduction: Reduction, most: float, *, words: bool) -> Reduction:
    """Cut what stands in users' and system messages before the newest turn until the budget is kept, the largest first.

    None of them to less than `most` tokens; system messages that a later one replaces to a quarter of that. Beginning
    and end stay, a mark says what is missing. The users' own `words` only where that is asked for.
    """
    messages, costs = list(reduction.messages), list(reduction.costs)
    excess = reduction.total - reduction.budget
    for index, least in sorted(_cuttable(reduction, most), key=lambda at: at[1] - costs[at[0]]):
        if excess <= 0 or costs[index] <= least:
            continue
        before = costs[index]
        messages[index], costs[index] = cut_middle(
            messages[index], before, min(excess, before - least), reduction.cost, words=words
        )
        excess -= before - costs[index]
    cut = replace(reduction, messages=messages, costs=costs)
    return cut if cut.total < reduction.total else reduction


def _cuttable(reduction: Reduction, most: float) -> Iterator[tuple[int, float]]:
    """Indexes of messages that may be cut, with the tokens that have to stay of each."""
    newest = newest_user(reduction.messages) or 0
    stale = False
    for index in reversed(range(newest)):
        message = reduction.messages[index]
        if is_system(message):
            yield index, most * (_STALE if stale else 1.0)
            stale = True
        elif message.get("role") == "user" and not is_result(message) and not is_summary(message):
            yield index, most
