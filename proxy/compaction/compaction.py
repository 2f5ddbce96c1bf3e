"""Shortening a history by a strategy: a pure flow that yields requests for summaries and receives texts.

What a strategy leaves too long is trimmed. The result is a prefix rewrite: `covered` messages at the front of the history
are replaced, the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from proxy.compaction.asking import Summariser, SummaryAsk
from proxy.compaction.ladder import Reduction
from proxy.compaction.ladder.results import cleaned
from proxy.compaction.middles import characters_cut, user_words
from proxy.compaction.strategies import AUTO, Kind, Strategy, at_any_price, shortened_by, trim
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import cut_points, is_user, newest_user
from proxy.core.request import Message

SummaryKind = Literal["", "written", "extract"]

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
    rungs: tuple[str, ...]
    summary: SummaryKind = ""
    """Who told what was taken out: a model (`written`), code (`extract`), or nobody."""
    cleaned: int = 0
    """Tool results that no longer stand there as they did: capped, masked, told of in a summary, or left out."""
    cut: tuple[float, float] = (0.0, 0.0)
    """Tokens of users' own words, before the newest message, in whose middle something was left out: these, and of how many."""


CompactionFlow: TypeAlias = Generator[SummaryAsk, str, Compaction]


def compact(
    reduction: Reduction, summariser: Summariser, *, limit: float, summarised: bool = False, strategy: Strategy = AUTO
) -> CompactionFlow:
    """Bring a history down to `reduction.budget` tokens, or at least below `limit`, the tokens that surely fit.

    `summarised`: with a summary, or an extract, though it could do without one.
    Yields summary requests; send the text back, empty when the model failed. Raises nothing: a result above
    `limit` means that the pinned part alone is too large.
    """
    if reduction.fits:
        return _rewritten(reduction, reduction, "pruned", ())
    shorter, rungs, kind = yield from shortened_by(strategy, reduction, summariser, summarised=summarised)
    if kind == "pruned" and not shorter.suffices and reduction.total - shorter.total < reduction.limits.minimum_gain:
        shorter, rungs = reduction, ()  # a few tokens are not worth the backend's prefix cache
    if shorter.total > (roomy := min(limit, reduction.roomy)):
        squeezed = at_any_price(shorter, roomy)
        worth = shorter.total - squeezed.total >= reduction.limits.minimum_gain
        shorter = squeezed if worth or shorter.total > limit else shorter
    if shorter.total > limit:
        shorter, rungs, kind = trim(shorter, limit), (*rungs, "trim"), "trimmed"
    return _rewritten(reduction, shorter, kind, rungs)


def kind_of(word: str) -> Kind:
    """A kind as it was stored; an unknown one counts as the deepest reduction."""
    return next((kind for kind in get_args(Kind) if kind == word), "trimmed")


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
        summary=next((_SUMMARY_KINDS[rung] for rung in rungs if rung in _SUMMARY_KINDS), ""),
        cleaned=cleaned(before[:covered], after[:replaced]),
        cut=_words_cut(old, new),
    )


def _words_cut(old: Reduction, new: Reduction) -> tuple[float, float]:
    """Tokens of users' words that were cut out of messages before the newest one, and of all words in these."""
    before, newest = {id(message) for message in old.messages}, newest_user(new.messages)
    gone = total = 0.0
    for message in new.messages[:newest]:
        if id(message) in before or not is_user(message) or is_summary(message):
            continue
        words = user_words(message)
        if (characters := characters_cut(words)) > 0:
            tokens = sum(new.cost([words]))
            missing = tokens * characters / max(1, len(words["content"]))
            gone, total = gone + missing, total + tokens + missing
    return gone, total
