"""Down the ladder without a model, as far as each step of it goes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.history.turns import cut_points, newest_user
from proxy.shortening.condensing import head_end
from proxy.shortening.ladder import RUNGS, Reduction
from proxy.shortening.ladder.cap import cap_unread
from proxy.shortening.ladder.mask import Mask
from proxy.shortening.ladder.oversize import cut_oversize
from proxy.shortening.ladder.trim import cut_middles, drop_oldest
from proxy.shortening.middles import LEAST_LEFT


def prune(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """Old turns first, then what the newest one has read; at last what was read a moment ago, rather than ask a model."""
    used: list[str] = []
    newest, end = newest_user(reduction.messages) or 0, len(reduction.messages)
    for rung in RUNGS:
        for tail in (newest, end):
            shorter = reduction if reduction.fits else rung.shorten(replace(reduction, tail=tail))
            if shorter.total < reduction.total:
                reduction, used = shorter, [*used, rung.name]
    for name, shorten in (("oversize", _cut_oversize), ("mask", _mask_all)):
        shorter = reduction if reduction.suffices else shorten(replace(reduction, tail=end))
        if shorter.total < reduction.total:
            reduction, used = replace(shorter, limits=reduction.limits), [*used, name]
    return reduction, tuple(dict.fromkeys(used))


def _cut_oversize(reduction: Reduction) -> Reduction:
    return cut_oversize(reduction, reduction.limits.message, words=False)


def _mask_all(reduction: Reduction) -> Reduction:
    return Mask().shorten(replace(reduction, limits=replace(reduction.limits, protect_newest=0)))


def give_up(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """What is shortened when all else was not enough: programs' blocks, what the model has not read yet, the user's words."""
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
    shorter = shorter if shorter.fits else cap_unread(replace(shorter, limits=limits, whole=0.0))
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
    return deeper if deeper.costs[user] >= LEAST_LEFT * shorter.costs[user] else cut
