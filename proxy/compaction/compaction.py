"""Shortening a history by a strategy: a pure flow that yields requests for summaries and receives texts.

What a strategy leaves too long is trimmed. The result is a prefix rewrite: `covered` messages at the front of the history
are replaced, the rest stays as it is. A new strategy is a function and an entry in `STRATEGIES`.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from proxy.compaction.asking import Summariser, SummaryAsk
from proxy.compaction.condensing import head_end, least_tail, summarise
from proxy.compaction.duplicates import drop_duplicates
from proxy.compaction.ladder import (
    LEAST_SHARE,
    Reduction,
    cap_results,
    cap_unread,
    cut_middles,
    cut_oversize,
    drop_oldest,
    drop_thoughts,
    mask_results,
)
from proxy.compaction.middles import share_left, user_words
from proxy.compaction.results import cleaned
from proxy.compaction.shorten import characters_cut
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import cut_points, is_user
from proxy.core.request import Message

Kind = Literal["pruned", "compacted", "trimmed", "read"]
SummaryKind = Literal["", "written", "extract"]
Rungs: TypeAlias = tuple[str, ...]
"""Names of the rungs that took something out."""
Shortening: TypeAlias = Generator[SummaryAsk, str, tuple[Reduction, Rungs, Kind]]
"""Yields requests for summaries and is sent the texts; comes to the shorter history."""
Step: TypeAlias = tuple[str, Callable[..., Reduction], dict[str, Any]]
"""A rung with its name and its bounds; it returns the same reduction if nothing is to gain."""

RUNGS: dict[str, Callable[..., Reduction]] = {
    "thoughts": drop_thoughts,
    "cap": cap_results,
    "mask": mask_results,
    "duplicates": drop_duplicates,
}
"""Rungs that need no model and keep every message in its place, in this order; each is told where the tail begins."""
_SUMMARY_KINDS: dict[str, SummaryKind] = {"summarise": "written", "extract": "extract"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Result of a compaction: the new history, and which part of the old one which part of it stands for."""

    messages: Sequence[Message]
    covered: int
    """Messages at the front of the old history that were rewritten; 0: nothing could be done."""
    replaced: int
    """Messages at the front of the new history that stand for them."""
    kind: Kind
    before: float
    after: float
    """Predicted tokens of the whole history."""
    rungs: Rungs
    cleaned: int = 0
    """Tool results that no longer stand there as they did: capped, masked, told of in a summary, or left out."""
    cut: tuple[float, float] = (0.0, 0.0)
    """Tokens of users' own words, before the newest message, in whose middle something was left out: these, and of how many."""

    @property
    def summary(self) -> SummaryKind:
        """Author of the summary of what was taken out: a model (`written`), code (`extract`), or nobody."""
        return next((_SUMMARY_KINDS[rung] for rung in self.rungs if rung in _SUMMARY_KINDS), "")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to bring a history down to its budget."""

    shorten: Callable[[Reduction, Summariser, bool], Shortening]
    """Its flow; the last argument says that a summary is wanted though the history could do without one."""
    asks: bool = True
    """Whether a model may be asked for a summary."""


def _auto(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - a `Strategy`
    """Rungs without a model, then a summary of what lies between head and tail, or an extract; then what else can be given up."""
    shorter, rungs = _prune(reduction)
    kind: Kind = "pruned"
    if summarised or shorter.total > shorter.goal:
        compacted, how = yield from summarise(reduction, shorter, by, always=summarised)
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    shorter, used = _give_up(shorter)
    return shorter, (*rungs, *used), kind


def _summarize(reduction: Reduction, by: Summariser, _summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """A summary of what lies between head and tail, though masking its results might do; the tail stays as it is."""
    roomy = least_tail(reduction) + by.tokens <= reduction.budget
    tail = reduction if roomy else _prune(reduction)[0]
    shorter, rungs = yield from summarise(reduction, tail, by, always=True)
    if shorter is None:
        return (yield from _auto(reduction, replace(by, available=False), summarised=False))
    shorter, used = _give_up(shorter)
    return shorter, (*rungs, *used), "compacted"


def _truncate(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """Whole turns are left out, the oldest first; head and newest turn stay, and give way only where they alone are too long.

    Where a summary is wanted, code makes an extract instead.
    """
    if summarised:
        return (yield from _auto(reduction, by, summarised))
    shorter = _drop_turns(reduction, reduction.budget)
    dropped = shorter.total < reduction.total
    rungs: Rungs = ("trim",) if dropped else ()
    for shorten in (_prune, _give_up):
        if shorter.total > shorter.goal:
            shorter, used = shorten(shorter)
            rungs = (*rungs, *used)
    return shorter, rungs, "trimmed" if dropped else "pruned"


STRATEGIES = {
    "auto": Strategy(_auto),
    "summarize": Strategy(_summarize),
    "truncate": Strategy(_truncate, asks=False),
    # Every summary that would be asked for is taken for one that failed: an extract made by code stands in its place.
    "mask": Strategy(_auto, asks=False),
}
"""Strategies by the name that users give them."""


def compact(
    reduction: Reduction,
    summariser: Summariser,
    *,
    limit: float,
    summarised: bool = False,
    strategy: Strategy = STRATEGIES["auto"],
) -> Generator[SummaryAsk, str, Compaction]:
    """Bring a history down to `reduction.budget` tokens, or at least below `limit`, the tokens that surely fit.

    `summarised`: with a summary, or an extract, though it could do without one.
    Yields summary requests; send the text back, empty when the model failed. Raises nothing: a result above
    `limit` means that the pinned part alone is too large.
    """
    if reduction.total <= reduction.budget:
        return _rewritten(reduction, reduction, "pruned", ())
    by = summariser if strategy.asks else replace(summariser, available=False)
    shorter, rungs, kind = yield from strategy.shorten(reduction, by, summarised)
    minimum_gain = reduction.limits.minimum_gain
    if kind == "pruned" and shorter.total > shorter.goal and reduction.total - shorter.total < minimum_gain:
        shorter, rungs = reduction, ()  # a few tokens are not worth the backend's prefix cache
    if shorter.total > (roomy := min(limit, reduction.roomy)):
        squeezed = _squeeze(shorter, roomy)
        worth = shorter.total - squeezed.total >= minimum_gain
        shorter = squeezed if worth or shorter.total > limit else shorter
    if shorter.total > limit:
        shorter, rungs, kind = _trim(shorter, limit), (*rungs, "trim"), "trimmed"
    return _rewritten(reduction, shorter, kind, rungs)


def _descend(reduction: Reduction, target: float, steps: Iterable[Step]) -> tuple[Reduction, Rungs]:
    """Take one step after the other until no more than `target` tokens are left."""
    used: list[str] = []
    for name, rung, bounds in steps:
        if reduction.total <= target:
            break
        shorter = rung(reduction, **bounds)
        if shorter.total < reduction.total:
            reduction = shorter
            used.append(name)
    return reduction, tuple(dict.fromkeys(used))


def _prune(reduction: Reduction) -> tuple[Reduction, Rungs]:
    """Old turns first, then what the newest one has read; at last what was read a moment ago, rather than ask a model."""
    budget, least, end = reduction.budget, reduction.limits.message, len(reduction.messages)
    tails = ({"tail": reduction.newest or 0}, {"tail": end})
    steps = [(name, rung, tail) for name, rung in RUNGS.items() for tail in tails]
    reduction, rungs = _descend(reduction, budget, steps)
    last: list[Step] = [
        ("oversize", cut_oversize, {"budget": budget, "least": least, "words": False}),
        ("mask", mask_results, {"tail": end, "protect": 0.0}),
    ]
    reduction, more = _descend(reduction, reduction.goal, last)
    return reduction, tuple(dict.fromkeys((*rungs, *more)))


def _give_up(reduction: Reduction) -> tuple[Reduction, Rungs]:
    """Shorten what is given up last: programs' blocks, what the model has not read yet, the user's words."""
    goal, least = reduction.goal, reduction.limits.message / 4
    steps: list[Step] = [
        ("oversize", cut_oversize, {"budget": goal, "least": least, "words": False}),
        ("unread", cap_unread, {}),
        ("oversize", cut_oversize, {"budget": goal, "least": least, "words": True}),
    ]
    return _descend(reduction, goal, steps)


def _squeeze(reduction: Reduction, limit: float) -> Reduction:
    """Down to `limit` without leaving out whole turns, if that goes: be it ever so little that each result gives."""
    limits = replace(reduction.limits, protect_newest=0, minimum_gain=0)
    reduction = replace(reduction, budget=limit, enough=limit, unread=0.0, limits=limits)
    steps: list[Step] = [("mask", mask_results, {"tail": len(reduction.messages)}), ("unread", cap_unread, {})]
    return _descend(reduction, limit, steps)[0]


def _drop_turns(reduction: Reduction, budget: float) -> Reduction:
    """Leave out whole turns, the oldest first, down to `budget` tokens; the head and the newest turn stay."""
    newest, floor = reduction.newest, head_end(reduction.messages)
    # In a turn that is all there is, only its last step is certain to stay.
    tail = newest if newest is not None and newest >= floor else cut_points(reduction.messages)[-2:][0]
    return drop_oldest(reduction, budget, floor, tail)


def _trim(reduction: Reduction, limit: float) -> Reduction:
    """Down to `limit` at any price: whole turns first, then the middles of what is left."""
    shorter = _drop_turns(reduction, limit)
    if shorter.total <= limit:
        return shorter
    cut, user = cut_middles(shorter, limit), shorter.newest
    if user is None or cut.messages[user] is shorter.messages[user] or cut.total <= reduction.recallable:
        return cut
    deeper = cut_middles(shorter, min(limit, reduction.recallable))
    whole = reduction.uncut or shorter.messages[user]
    more, less = (share_left(whole, each.messages[user], reduction.cost) for each in (cut, deeper))
    # Where hardly anything of it has room in any case, what is asked has to be recalled.
    return cut if less < LEAST_SHARE <= more else deeper


def _rewritten(old: Reduction, new: Reduction, kind: Kind, rungs: Rungs) -> Compaction:
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
        cleaned=cleaned(before[:covered], after[:replaced]),
        cut=_words_cut(old, new),
    )


def _words_cut(old: Reduction, new: Reduction) -> tuple[float, float]:
    """Tokens of users' words that were cut out of messages before the newest one, and of all words in these."""
    before, newest = {id(message) for message in old.messages}, new.newest
    gone = total = 0.0
    for message in new.messages[:newest]:
        if id(message) in before or not is_user(message) or is_summary(message):
            continue
        words = user_words(message)
        if (characters := characters_cut(words["content"])) > 0:
            tokens = sum(new.cost([words]))
            missing = tokens * characters / max(1, len(words["content"]))
            gone, total = gone + missing, total + tokens + missing
    return gone, total
