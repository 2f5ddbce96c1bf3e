"""Shortening a history down the ladder: a pure flow that yields requests for summaries and receives texts.

Order: rungs without a model, then a summary of what lies between head and tail, then an extract made by code
when the summary fails twice, then trimming. The result is a prefix rewrite: `covered` messages at the front
of the history are replaced, the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

from proxy.history.marks import is_summary
from proxy.history.sentences import last_end
from proxy.history.turns import bridge_needed, cut_points, first_user, is_result, is_user, newest_user
from proxy.neutral.request import Message
from proxy.shortening import summary
from proxy.shortening.asking import Summariser, SummaryAsk, asked, bounded
from proxy.shortening.extract import extract
from proxy.shortening.ladder import RUNGS, Reduction
from proxy.shortening.ladder.trim import cut_middles, drop_oldest
from proxy.shortening.source import Source, source_of

Kind = Literal["pruned", "compacted", "trimmed"]
Told = Literal["", "written", "extract"]

_TOLD: dict[str, Told] = {"summarise": "written", "extract": "extract"}
_MOST_TOO_LONG = 1.25
"""Of the tokens asked for, what a summary may have by the estimate."""


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
    summary: Told = ""
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
    if summarised or not shorter.fits:
        compacted, how = yield from bounded(_summarise(reduction, shorter, summariser))
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    if (
        kind == "pruned"
        and not shorter.fits
        and reduction.total - shorter.total < reduction.limits.minimum_gain
    ):
        shorter, rungs = reduction, ()  # a few tokens are not worth the backend's prefix cache
    if shorter.total > limit:
        shorter, rungs, kind = _trim(shorter, limit), (*rungs, "trim"), "trimmed"
    return _rewritten(reduction, shorter, kind, rungs)


def kind_of(word: str) -> Kind:
    """A kind as it was stored; an unknown one counts as the deepest reduction."""
    return next((kind for kind in get_args(Kind) if kind == word), "trimmed")


def head_end(messages: Sequence[Message]) -> int:
    """Index after the pinned head: the first user message and, if there is one, the frozen summary.

    Where several turns with tool results come before it, the beginning of the conversation is missing: none is pinned.
    """
    first = first_user(messages)
    if first is None or _beheaded(messages[:first]):
        return 0
    end = first + 1
    if end < len(messages) and is_summary(messages[end]) and messages[end].get("role") == "assistant":
        end += 1
        end += summary.is_bridge(messages, end)
    return end


def _beheaded(before: Sequence[Message]) -> bool:
    return any(map(is_result, before)) and len(cut_points(before)) > 2


def _prune(reduction: Reduction) -> tuple[Reduction, tuple[str, ...]]:
    """Old turns first, then what the newest one has read."""
    newest = newest_user(reduction.messages)
    used: list[str] = []
    for rung in RUNGS:
        for tail in (newest or 0, len(reduction.messages)):
            shorter = reduction if reduction.fits else rung.shorten(replace(reduction, tail=tail))
            if shorter.total < reduction.total:
                reduction, used = shorter, [*used, rung.name]
    return reduction, tuple(dict.fromkeys(used))


def _trim(reduction: Reduction, limit: float) -> Reduction:
    newest, floor = newest_user(reduction.messages), head_end(reduction.messages)
    # In a turn that is all there is, only its last step is certain to stay.
    tail = newest if newest is not None and newest >= floor else cut_points(reduction.messages)[-2:][0]
    shorter = drop_oldest(replace(reduction, budget=limit, tail=tail, floor=floor))
    return shorter if shorter.fits else cut_middles(shorter)


def _tail_start(reduction: Reduction, room: float) -> int | None:
    """Where the verbatim tail begins: as early as `room` allows, before the newest user turn if that fits.

    None if there is no place to cut. What lies before it is summarised and covered, so it never ends in the newest user
    message: that one would be told of, though it stays as it is and may yet be edited.
    """
    newest = newest_user(reduction.messages)
    # Tokens of everything before an index.
    upto = [0.0, *accumulate(reduction.costs)]
    point: int | None
    points = [
        point
        for point in cut_points(reduction.messages)
        if reduction.floor <= point < len(reduction.messages)
    ]
    for point in points:
        if point > reduction.floor and point - 1 != newest and is_user(reduction.messages[point - 1]):
            continue  # a question stays with its answer
        moved = newest is not None and reduction.floor <= newest < point
        if upto[-1] - upto[point] + (reduction.costs[newest or 0] if moved else 0.0) <= room:
            break
    else:
        point = points[-1] if points else None
    return newest if point is not None and point - 1 == newest and newest >= reduction.floor else point


def _summarise(
    reduction: Reduction, pruned: Reduction, by: Summariser
) -> Generator[SummaryAsk, str, tuple[Reduction | None, tuple[str, ...]]]:
    """Summarise the unpruned history, whose bytes the backend has cached; the tail is kept as it was pruned."""
    reduction = _merge_if_due(reduction, by)
    pinned = sum(reduction.costs[: reduction.floor])
    start = _tail_start(replace(pruned, floor=reduction.floor), reduction.budget - pinned - by.tokens)
    if (
        start is None
        or sum(reduction.costs[reduction.floor : start]) - by.tokens < reduction.limits.minimum_gain
    ):
        return None, ()
    zone = reduction.messages[reduction.floor : start]
    source = source_of(zone)
    rung, text = "summarise", (yield from asked(reduction, by, start, source))
    if not text:
        rung, text = "extract", _extract(zone, source, reduction, by)
    kept = replace(
        reduction,
        messages=[*reduction.messages[:start], *pruned.messages[start:]],
        leans={index: end for index, end in pruned.leans.items() if index >= start},
    )
    compacted = _with_summary(
        kept, start, summary.block(_within(text, reduction, by), zone, limit=by.tokens, source=source)
    )
    return (
        (compacted, (rung,))
        if compacted.total < reduction.total - reduction.limits.minimum_gain
        else (None, ())
    )


def _extract(zone: Sequence[Message], source: Source, reduction: Reduction, by: Summariser) -> str:
    """What code makes of it, in about as many tokens as a summary."""
    limit = by.tokens * 4
    text = extract(zone, source, limit=limit)
    if (tokens := sum(reduction.cost([{"role": "assistant", "content": text}]))) > by.tokens:
        text = extract(zone, source, limit=int(limit * by.tokens / tokens))
    return text


def _within(text: str, reduction: Reduction, by: Summariser) -> str:
    """A summary without what it has above the length that was asked for: not every backend keeps that."""
    while (
        tokens := sum(reduction.cost([{"role": "assistant", "content": text}]))
    ) > _MOST_TOO_LONG * by.tokens:
        shorter = text[: int(len(text) * by.tokens / tokens)]
        text = shorter[: last_end(shorter)].rstrip() or shorter
    return text


def _merge_if_due(reduction: Reduction, by: Summariser) -> Reduction:
    """Earlier summary blocks stay frozen until together they outgrow their budget; then they are summarised too."""
    at = next((i for i in range(reduction.floor) if is_summary(reduction.messages[i])), None)
    if at is None or reduction.costs[at] <= 2 * by.tokens:
        return reduction
    return replace(reduction, floor=at)


def _with_summary(reduction: Reduction, start: int, block: str) -> Reduction:
    """The history with a summary in place of what lies between head and tail.

    Earlier blocks stay as they are, in front of it. A newest user message that is covered stays whole behind it.
    """
    messages, newest = reduction.messages, newest_user(reduction.messages)
    head = list(messages[: reduction.floor])
    if summary.is_bridge(head, len(head) - 1):
        head.pop()
    while head and is_summary(head[-1]):
        block = f"{head.pop()['content']}\n{block}"
    said: Message = {"role": "assistant" if head else "user", "content": block}
    rest = list(messages[start:])
    if newest is not None and reduction.floor <= newest < start:
        rest.insert(0, messages[newest])
    role = bridge_needed(said, rest)
    bridge = [{"role": role, "content": summary.BRIDGE if role == "user" else summary.NOTED}] if role else []
    shorter = [*head, said, *bridge, *rest]
    return replace(reduction, messages=shorter, costs=reduction.cost(shorter), floor=len(head) + 1)


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
