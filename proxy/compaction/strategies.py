"""Strategies by which a history is brought down to its budget. A new one is a function and an entry in `STRATEGIES`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from proxy.compaction.asking import Summariser, SummaryAsk, bounded
from proxy.compaction.condensing import head_end, least_tail, summarise
from proxy.compaction.ladder import RUNGS, Reduction
from proxy.compaction.ladder.cap import cap_unread
from proxy.compaction.ladder.mask import mask_results
from proxy.compaction.ladder.trim import cut_middles, cut_oversize, drop_oldest
from proxy.compaction.middles import LEAST_SHARE
from proxy.core.history.turns import cut_points, newest_user

Kind = Literal["pruned", "compacted", "trimmed"]
Shortening: TypeAlias = Generator[SummaryAsk, str, tuple[Reduction, tuple[str, ...], Kind]]
"""Yields requests for summaries and is sent the texts; comes to the history, the rungs that took something out, and its kind."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to bring a history down to its budget."""

    shorten: Callable[[Reduction, Summariser, bool], Shortening]
    """Its flow; the last argument says that somebody wants to be told of what is taken out."""
    asks: bool = True
    """Whether a model may be asked for a summary."""


def _auto(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - a `Strategy`
    """Rungs without a model, then a summary of what lies between head and tail, or an extract; then what else can be given up."""
    shorter, rungs = prune(reduction)
    kind: Kind = "pruned"
    if summarised or not shorter.suffices:
        compacted, how = yield from summarise(reduction, shorter, by, always=summarised)
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    shorter, rungs = _further(shorter, rungs, give_up)
    return shorter, rungs, kind


def _summarize(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """A summary of what lies between head and tail, though masking its results might do; the tail stays as it is."""
    del summarised
    roomy = least_tail(reduction) + by.tokens <= reduction.budget
    tail = reduction if roomy else prune(reduction)[0]
    shorter, rungs = yield from summarise(reduction, tail, by, always=True)
    if shorter is None:
        return (yield from bounded(_auto(reduction, by, summarised=False), most=0))
    shorter, rungs = _further(shorter, rungs, give_up)
    return shorter, rungs, "compacted"


def _truncate(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """Whole turns are left out, the oldest first; head and newest turn stay, and give way only where they alone are too long.

    Where somebody wants to be told of them, code does that instead.
    """
    if summarised:
        return (yield from _auto(reduction, by, summarised=True))
    shorter = drop_turns(reduction, reduction.budget)
    dropped = shorter.total < reduction.total
    shorter, rungs = _further(shorter, ("trim",) if dropped else (), prune, give_up)
    return shorter, rungs, "trimmed" if dropped else "pruned"


def _further(
    reduction: Reduction, rungs: tuple[str, ...], *steps: Callable[[Reduction], tuple[Reduction, tuple[str, ...]]]
) -> tuple[Reduction, tuple[str, ...]]:
    for step in steps:
        if not reduction.suffices:
            reduction, used = step(reduction)
            rungs = (*rungs, *used)
    return reduction, rungs


STRATEGIES = {
    "auto": Strategy(_auto),
    "summarize": Strategy(_summarize),
    "truncate": Strategy(_truncate, asks=False),
    # Every summary that would be asked for is taken for one that failed: an extract made by code stands in its place.
    "mask": Strategy(_auto, asks=False),
}
"""Strategies by the name that users give them."""
AUTO = STRATEGIES["auto"]


def shortened_by(strategy: Strategy, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
    """The flow of a strategy, which asks for a bounded number of summaries, or for none."""
    flow = strategy.shorten(reduction, by, summarised)
    return bounded(flow) if strategy.asks else bounded(flow, most=0)


def prune(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """Old turns first, then what the newest one has read; at last what was read a moment ago, rather than ask a model."""
    used: list[str] = []
    newest, end = newest_user(reduction.messages) or 0, len(reduction.messages)
    for name, rung in RUNGS.items():
        for tail in (newest, end):
            shorter = reduction if reduction.fits else rung(replace(reduction, tail=tail))
            if shorter.total < reduction.total:
                reduction, used = shorter, [*used, name]
    for name, shorten in (("oversize", _cut_oversize), ("mask", _mask_all)):
        shorter = reduction if reduction.suffices else shorten(replace(reduction, tail=end))
        if shorter.total < reduction.total:
            reduction, used = replace(shorter, limits=reduction.limits), [*used, name]
    return reduction, tuple(dict.fromkeys(used))


def _cut_oversize(reduction: Reduction) -> Reduction:
    return cut_oversize(reduction, reduction.limits.message, words=False)


def _mask_all(reduction: Reduction) -> Reduction:
    return mask_results(replace(reduction, limits=replace(reduction.limits, protect_newest=0)))


def give_up(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """Shorten what is given up last: programs' blocks, what the model has not read yet, the user's words."""
    used: list[str] = []
    steps = (
        ("oversize", partial(_cut_deep, words=False)),
        ("unread", cap_unread),
        ("oversize", partial(_cut_deep, words=True)),
    )
    for name, shorten in steps:
        shorter = reduction if reduction.suffices else shorten(reduction)
        if shorter.total < reduction.total:
            reduction, used = shorter, [*used, name]
    return reduction, tuple(dict.fromkeys(used))


def at_any_price(reduction: Reduction, limit: float) -> Reduction:
    """Down to `limit` without leaving out whole turns, if that goes: be it ever so little that each result gives."""
    limits = replace(reduction.limits, minimum_gain=0)
    all_of_it = replace(reduction, budget=limit, enough=limit, limits=limits, tail=len(reduction.messages))
    shorter = all_of_it if all_of_it.fits else _mask_all(all_of_it)
    shorter = shorter if shorter.fits else cap_unread(replace(shorter, limits=limits, unread=0.0))
    return replace(shorter, budget=reduction.budget, enough=reduction.enough, limits=reduction.limits)


def _cut_deep(reduction: Reduction, *, words: bool) -> Reduction:
    enough = max(reduction.budget, reduction.enough)
    cut = cut_oversize(replace(reduction, budget=enough), reduction.limits.message / 4, words=words)
    return replace(cut, budget=reduction.budget)


def drop_turns(reduction: Reduction, budget: float) -> Reduction:
    """Leave out whole turns, the oldest first, down to `budget` tokens; the head and the newest turn stay."""
    newest, floor = newest_user(reduction.messages), head_end(reduction.messages)
    # In a turn that is all there is, only its last step is certain to stay.
    tail = newest if newest is not None and newest >= floor else cut_points(reduction.messages)[-2:][0]
    return drop_oldest(replace(reduction, budget=budget, tail=tail, floor=floor))


def trim(reduction: Reduction, limit: float) -> Reduction:
    """Down to `limit` at any price: whole turns first, then the middles of what is left."""
    shorter = drop_turns(reduction, limit)
    if shorter.fits:
        return shorter
    cut, user = cut_middles(shorter), newest_user(shorter.messages)
    if user is None or cut.messages[user] is shorter.messages[user] or cut.total <= reduction.recallable:
        return cut
    deeper = cut_middles(replace(shorter, budget=min(limit, reduction.recallable)))
    return deeper if deeper.costs[user] >= LEAST_SHARE * shorter.costs[user] else cut
