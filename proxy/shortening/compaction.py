"""Shortening a history down the ladder: a pure flow that yields requests for summaries and receives texts.

Order: rungs without a model, then a summary of what lies between head and tail, then an extract made by code
when the summary fails twice, then trimming. The result is a prefix rewrite: `covered` messages at the front
of the history are replaced, the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from proxy.history.turns import cut_points, newest_user
from proxy.neutral.request import Message
from proxy.shortening.asking import Summariser, SummaryAsk, bounded
from proxy.shortening.condensing import head_end, summarise
from proxy.shortening.ladder import RUNGS, Reduction
from proxy.shortening.ladder.cap import cap_unread
from proxy.shortening.ladder.mask import Mask
from proxy.shortening.ladder.oversize import cut_oversize
from proxy.shortening.ladder.trim import cut_middles, drop_oldest
from proxy.shortening.middles import LEAST_LEFT

Kind = Literal["pruned", "compacted", "trimmed"]
SummaryKind = Literal["", "written", "extract"]

_TOLD: dict[str, SummaryKind] = {"summarise": "written", "extract": "extract"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What came out: the new history, and which part of the old one which part of it stands for."""

    messages: Sequence[Message]
    covered: int
    """Messages at the front of the old history that were rewritten; 0: nothing could be done."""
    replaced: int
    """Messages at the front of the new history that stand for them."""
    kind: Kind
    before: float
    after: float
    """Predicted tokens of the whole history."""
    rungs: tuple[str, ...]
    summary: SummaryKind = ""
    """Who told what was taken out: a model (`written`), code (`extract`), or nobody."""


CompactionFlow: TypeAlias = Generator[SummaryAsk, str, Compaction]


def compact(
    reduction: Reduction, summariser: Summariser, *, limit: float, summarised: bool = False
) -> CompactionFlow:
    """Bring a history down to `reduction.budget` tokens, or at least below `limit`, the tokens that surely fit.

    `summarised`: with a summary, though it could do without one.
    Yields summary requests; send the text back, empty when the model failed. Raises nothing: a result above
    `limit` means that the pinned part alone is too large.
    """
    if reduction.fits:
        return _rewritten(reduction, reduction, "pruned", ())
    shorter, rungs = _prune(reduction)
    kind: Kind = "pruned"
    if summarised or not shorter.suffices:
        compacted, how = yield from bounded(summarise(reduction, shorter, summariser, always=summarised))
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    if not shorter.suffices:
        shorter, given = _give_up(shorter)
        rungs = (*rungs, *given)
    if (
        kind == "pruned"
        and not shorter.suffices
        and reduction.total - shorter.total < reduction.limits.minimum_gain
    ):
        shorter, rungs = reduction, ()  # a few tokens are not worth the backend's prefix cache
    if shorter.total > (roomy := min(limit, reduction.roomy)):
        squeezed = _at_any_price(shorter, roomy)
        worth = shorter.total - squeezed.total >= reduction.limits.minimum_gain
        shorter = squeezed if worth or shorter.total > limit else shorter
    if shorter.total > limit:
        shorter, rungs, kind = _trim(shorter, limit), (*rungs, "trim"), "trimmed"
    return _rewritten(reduction, shorter, kind, rungs)


def kind_of(word: str) -> Kind:
    """A kind as it was stored; an unknown one counts as the deepest reduction."""
    return next((kind for kind in get_args(Kind) if kind == word), "trimmed")


def _prune(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
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
    return cut_oversize(reduction, reduction.limits.message)


def _mask_all(reduction: Reduction) -> Reduction:
    return Mask().shorten(replace(reduction, limits=replace(reduction.limits, protect_newest=0)))


def _give_up(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """What is shortened when all else was not enough: what the model has not read yet, and what opened the session."""
    used: list[str] = []
    for name, shorten in (("unread", cap_unread), ("oversize", _cut_deep)):
        shorter = reduction if reduction.suffices else shorten(reduction)
        if shorter.total < reduction.total:
            reduction, used = shorter, [*used, name]
    return reduction, tuple(used)


def _at_any_price(reduction: Reduction, limit: float) -> Reduction:
    """Down to `limit` without leaving out whole turns, if that goes: be it ever so little that each result gives."""
    limits = replace(reduction.limits, minimum_gain=0)
    all_of_it = replace(reduction, budget=limit, enough=limit, limits=limits, tail=len(reduction.messages))
    shorter = all_of_it if all_of_it.fits else _mask_all(all_of_it)
    shorter = shorter if shorter.fits else cap_unread(replace(shorter, limits=limits, whole=0.0))
    return replace(shorter, budget=reduction.budget, enough=reduction.enough, limits=reduction.limits)


def _cut_deep(reduction: Reduction) -> Reduction:
    enough = max(reduction.budget, reduction.enough)
    cut = cut_oversize(replace(reduction, budget=enough), reduction.limits.message / 4)
    return replace(cut, budget=reduction.budget)


def _trim(reduction: Reduction, limit: float) -> Reduction:
    newest, floor = newest_user(reduction.messages), head_end(reduction.messages)
    # In a turn that is all there is, only its last step is certain to stay.
    tail = newest if newest is not None and newest >= floor else cut_points(reduction.messages)[-2:][0]
    shorter = drop_oldest(replace(reduction, budget=limit, tail=tail, floor=floor))
    if shorter.fits:
        return shorter
    cut, user = cut_middles(shorter), newest_user(shorter.messages)
    if user is None or cut.messages[user] is shorter.messages[user] or cut.total <= reduction.recallable:
        return cut
    deeper = cut_middles(replace(shorter, budget=min(limit, reduction.recallable)))
    return deeper if deeper.costs[user] >= LEAST_LEFT * shorter.costs[user] else cut


def _rewritten(old: Reduction, new: Reduction, kind: Kind, rungs: tuple[str, ...]) -> Compaction:
    """Find the untouched common end: everything before it is covered, and what the rewrite points at. No gain, no rewrite."""
    if new.total >= old.total:
        new, rungs = old, ()
    before, after = list(old.messages), list(new.messages)
    same = 0
    while same < min(len(before), len(after)) and before[-1 - same] is after[-1 - same]:
        same += 1
    # Up to the next place where the history may be cut: a batch of results is stored whole.
    least = max(len(before) - same, *new.leans.values(), 0)
    covered = next(point for point in cut_points(before) if point >= least)
    replaced = len(after) - (len(before) - covered)
    return Compaction(
        messages=after,
        covered=covered,
        replaced=replaced,
        kind=kind,
        before=old.total,
        after=new.total,
        rungs=rungs,
        summary=next((_TOLD[rung] for rung in rungs if rung in _TOLD), ""),
    )
