"""Shortening a history by a strategy: a pure flow that yields requests for summaries and receives texts.

A history that is still too long after its strategy is trimmed. The result is a prefix rewrite: `covered` messages at the
front of the history are replaced, the rest stays as it is. A new strategy is a function and an entry in `STRATEGIES`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from proxy.compaction.asking import Sliced, Summariser
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
from proxy.core.history.rules import constraints
from proxy.core.history.turns import cut_points, is_user
from proxy.core.request import Message

Kind = Literal["pruned", "compacted", "trimmed", "read"]
SummaryKind = Literal["", "written", "extract"]
Rungs: TypeAlias = tuple[str, ...]
"""Names of the rungs that saved tokens, in the order in which they were tried."""
Shortening: TypeAlias = Sliced[tuple[Reduction, Rungs, Kind]]
"""Returns the shorter history with its rungs and its kind."""
Step: TypeAlias = tuple[str, Callable[..., Reduction], dict[str, Any]]
"""Name of a rung, the rung itself, and its bounds. A rung returns the same reduction if it would save nothing."""

RUNGS: dict[str, Callable[..., Reduction]] = {
    "thoughts": drop_thoughts,
    "cap": cap_results,
    "mask": mask_results,
    "duplicates": drop_duplicates,
}
"""Rungs that need no model and keep every message in its place, in this order; each takes the index of the tail."""
_SUMMARY_KINDS: dict[str, SummaryKind] = {"summarise": "written", "extract": "extract"}
_ANY_LENGTH = 2**31
"""Characters; more than all rules of a conversation have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Result of a compaction: the new history, and how many of its first messages replace how many of the old ones."""

    messages: Sequence[Message]
    covered: int
    """Messages at the front of the old history that were rewritten; 0 if nothing could be done."""
    replaced: int
    """Messages at the front of the new history that replace the covered ones."""
    kind: Kind
    before: float
    after: float
    """Predicted tokens of the whole history, like `before`."""
    rungs: Rungs
    cleaned: int = 0
    """Tool results that are no longer there in full: capped, masked, summarised, or left out."""
    cut: tuple[float, float] = (0.0, 0.0)
    """Tokens cut from the middle of users' own words, and all tokens of the words so cut; the newest message not counted."""

    @property
    def summary(self) -> SummaryKind:
        """Author of the summary: a model (`written`), code (`extract`), or nobody."""
        return next((_SUMMARY_KINDS[rung] for rung in self.rungs if rung in _SUMMARY_KINDS), "")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to bring a history down to its budget."""

    shorten: Callable[[Reduction, Summariser, bool], Shortening]
    """Flow of the strategy. If the last argument is true, a summary is wanted even where the history could do without one."""
    asks: bool = True
    """Whether a model may be asked for a summary."""


def _auto(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - a `Strategy`
    """Prune without a model, then summarise (or extract) what lies between head and tail, then give up what else can go."""
    shorter, rungs = yield from _prune(reduction)
    kind: Kind = "pruned"
    if summarised or shorter.total > shorter.enough:
        compacted, how = yield from summarise(reduction, shorter, by, always=summarised)
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    shorter, used = yield from _give_up(shorter)
    return shorter, (*rungs, *used), kind


def _summarize(reduction: Reduction, by: Summariser, _summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """Summarise what lies between head and tail even if masking its results might do; the tail stays as it is."""
    roomy = least_tail(reduction) + by.tokens <= reduction.budget
    tail = reduction if roomy else (yield from _prune(reduction))[0]
    shorter, rungs = yield from summarise(reduction, tail, by, always=True)
    if shorter is None:
        return (yield from _auto(reduction, replace(by, available=False), summarised=False))
    shorter, used = yield from _give_up(shorter)
    return shorter, (*rungs, *used), "compacted"


def _truncate(reduction: Reduction, by: Summariser, summarised: bool) -> Shortening:  # noqa: FBT001 - as above
    """Leave out whole turns, the oldest first; shorten the head and the newest turn only if they alone are too long.

    If a summary is wanted, code makes an extract instead.
    """
    if summarised:
        return (yield from _auto(reduction, by, summarised))
    shorter = _drop_turns(reduction, reduction.budget)
    dropped = shorter.total < reduction.total
    rungs: Rungs = ("trim",) if dropped else ()
    for shorten in (_prune, _give_up):
        if shorter.total > shorter.enough:
            shorter, used = yield from shorten(shorter)
            rungs = (*rungs, *used)
    return shorter, rungs, "trimmed" if dropped else "pruned"


STRATEGIES = {
    "auto": Strategy(_auto),
    "summarize": Strategy(_summarize),
    "truncate": Strategy(_truncate, asks=False),
    # No model is asked, as if every request for a summary had failed: code makes extracts instead.
    "mask": Strategy(_auto, asks=False),
}
"""Strategies by the names that users set."""


def compact(
    reduction: Reduction,
    summariser: Summariser,
    *,
    limit: float,
    summarised: bool = False,
    strategy: Strategy = STRATEGIES["auto"],
) -> Sliced[Compaction]:
    """Bring a history down to `reduction.budget` tokens, or at least below `limit`, the tokens that surely fit.

    With `summarised`, the result has a summary or an extract even if pruning alone would do.
    Raises nothing: a result above `limit` means that the pinned part alone is too large.
    """
    # In slices: in one piece, a chat of 1 MB took 4.7 s, in which nobody else had a turn and the client's leaving went
    # unnoticed.
    if reduction.total <= reduction.budget:
        return _rewritten(reduction, reduction, "pruned", ())
    by = summariser if strategy.asks else replace(summariser, available=False)
    shorter, rungs, kind = yield from strategy.shorten(reduction, by, summarised)
    minimum_gain = reduction.limits.minimum_gain
    if kind == "pruned" and shorter.total > shorter.enough and reduction.total - shorter.total < minimum_gain:
        shorter, rungs = reduction, ()  # a few tokens are not worth the backend's prefix cache
    if shorter.total > (roomy := min(limit, reduction.roomy)):
        squeezed = yield from _squeeze(shorter, roomy)
        worth = shorter.total - squeezed.total >= minimum_gain
        shorter = squeezed if worth or shorter.total > limit else shorter
    if shorter.total > limit:
        shorter, rungs, kind = _trim(shorter, limit), (*rungs, "trim"), "trimmed"
    return _rewritten(reduction, shorter, kind, rungs)


def leave_out(reduction: Reduction, place: int) -> tuple[Compaction, list[int]] | None:
    """Leave out turns after the head, down to the budget if there are as many, without a note in their place; the newest stays.

    `place`: index in front of which a summary is sent, or 0: the turn before it or around it stays too. Returns the rewrite and the
    indexes of the messages that stay, or None if more than `enough` are left, or a rule or instructions would be hidden from the model.
    """
    messages, costs = reduction.messages, reduction.costs
    turns = [at for at in cut_points(messages)[:-1] if at >= reduction.floor and is_user(messages[at])]
    gone, total = set[int](), reduction.total
    place = place if any(map(is_summary, messages[:place])) else 0
    for start, end in pairwise(turns):
        if total <= reduction.budget or end > (reduction.newest or 0):
            break
        if not start < place <= end:
            gone.update(range(start, end))
            total -= sum(costs[start:end])
    if not gone or total > reduction.enough or reduction.instructions(min(gone), max(gone) + 1):
        return None
    if constraints([messages[at] for at in sorted(gone)], limit=_ANY_LENGTH):
        return None
    kept = [at for at in range(len(messages)) if at not in gone]
    shorter = replace(reduction, messages=[messages[at] for at in kept], costs=[costs[at] for at in kept])
    return _rewritten(reduction, shorter, "trimmed", ("trim",)), kept


def _descend(reduction: Reduction, target: float, steps: Iterable[Step]) -> Sliced[tuple[Reduction, Rungs]]:
    """Take one step after the other until at most `target` tokens are left."""
    used: list[str] = []
    for name, rung, bounds in steps:
        if reduction.total <= target:
            break
        shorter = rung(reduction, **bounds)
        yield None
        if shorter.total < reduction.total:
            reduction = shorter
            used.append(name)
    return reduction, tuple(dict.fromkeys(used))


def _prune(reduction: Reduction) -> Sliced[tuple[Reduction, Rungs]]:
    """Prune old turns first, then what the newest one has read, and last what it read a moment ago: still cheaper than a model."""
    budget, least, end = reduction.budget, reduction.limits.message, len(reduction.messages)
    tails = ({"tail": reduction.newest or 0}, {"tail": end})
    steps = [(name, rung, tail) for name, rung in RUNGS.items() for tail in tails]
    reduction, rungs = yield from _descend(reduction, budget, steps)
    last: list[Step] = [
        ("oversize", cut_oversize, {"budget": budget, "least": least, "words": False}),
        ("mask", mask_results, {"tail": end, "protect": 0.0}),
    ]
    reduction, more = yield from _descend(reduction, reduction.enough, last)
    return reduction, tuple(dict.fromkeys((*rungs, *more)))


def _give_up(reduction: Reduction) -> Sliced[tuple[Reduction, Rungs]]:
    """Shorten what is given up last: programs' blocks, results that the model has not read yet, the user's words."""
    goal, least = reduction.enough, reduction.limits.message / 4
    steps: list[Step] = [
        ("oversize", cut_oversize, {"budget": goal, "least": least, "words": False}),
        ("unread", cap_unread, {}),
        ("oversize", cut_oversize, {"budget": goal, "least": least, "words": True}),
    ]
    return (yield from _descend(reduction, goal, steps))


def _squeeze(reduction: Reduction, limit: float) -> Sliced[Reduction]:
    """Come down to `limit` without leaving out whole turns, if possible, however little each result saves."""
    limits = replace(reduction.limits, protect_newest=0, minimum_gain=0)
    reduction = replace(reduction, budget=limit, enough=limit, unread=0.0, limits=limits)
    steps: list[Step] = [("mask", mask_results, {"tail": len(reduction.messages)}), ("unread", cap_unread, {})]
    return (yield from _descend(reduction, limit, steps))[0]


def _drop_turns(reduction: Reduction, budget: float) -> Reduction:
    """Leave out whole turns, the oldest first, down to `budget` tokens; the head and the newest turn stay."""
    newest, floor = reduction.newest, head_end(reduction.messages)
    # If the history is one long turn, only its last step is certain to stay.
    tail = newest if newest is not None and newest >= floor else cut_points(reduction.messages)[-2:][0]
    return drop_oldest(reduction, budget, floor, tail)


def _trim(reduction: Reduction, limit: float) -> Reduction:
    """Come down to `limit` at any cost: leave out whole turns first, then cut the middles of the remaining messages."""
    shorter = _drop_turns(reduction, limit)
    if shorter.total <= limit:
        return shorter
    cut, user = cut_middles(shorter, limit), shorter.newest
    if user is None or cut.messages[user] is shorter.messages[user] or cut.total <= reduction.recallable:
        return cut
    deeper = cut_middles(shorter, min(limit, reduction.recallable))
    uncut = reduction.uncut or shorter.messages[user]
    more, less = (share_left(uncut, each.messages[user], reduction.cost) for each in (cut, deeper))
    # The deeper cut makes room to recall pieces of the newest message, but leaves fewer of its words in place. If only the
    # shallower cut leaves a readable share, take that; if neither does, the pieces have to be recalled anyway.
    return cut if less < LEAST_SHARE <= more else deeper


def _rewritten(old: Reduction, new: Reduction, kind: Kind, rungs: Rungs) -> Compaction:
    """Find the untouched common end: everything before it is covered, and so is what the rewrite points at.

    Without a gain, there is no rewrite.
    """
    if new.total >= old.total:
        new, rungs = old, ()
    before, after = list(old.messages), list(new.messages)
    same = 0
    while same < min(len(before), len(after)) and before[-1 - same] is after[-1 - same]:
        same += 1
    # Round up to the next place where the history may be cut: a batch of results is stored whole.
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
    """Return the tokens cut from users' words before the newest message, and all tokens of the words that were cut."""
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
