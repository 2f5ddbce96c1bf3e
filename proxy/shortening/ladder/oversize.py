"""Cut the middle out of long messages that are not the newest: programs' blocks and stale system messages, then users' words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from proxy.history.marks import is_summary
from proxy.history.turns import is_result, is_system, newest_user
from proxy.shortening.ladder.base import Reduction
from proxy.shortening.middles import cut_middle

_STALE = 1 / 4
"""What is left of a system message behind which another stands, as a share of what is left of others."""


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
