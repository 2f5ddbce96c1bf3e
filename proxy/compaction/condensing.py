"""Plan and place a summary: which part of the beginning stays, where the tail begins, and the block between them."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import is_
from typing import Any

from proxy.compaction import summary
from proxy.compaction.asking import SMALLEST, Sliced, Summariser, request_summary
from proxy.compaction.extract import extract, newer_statements
from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import cut_message
from proxy.compaction.opening import Part, beginning, opening, parts_of, unfinished
from proxy.compaction.source import Source, read_source
from proxy.core.history.marks import BRIDGE, EXTRACT, NOTED, QUOTES, is_summary
from proxy.core.history.sentences import last_end
from proxy.core.history.turns import bridge_needed, cut_points, first_user, is_result, is_user, newest_user
from proxy.core.request import SYSTEM_ROLES, Message

_MOST_TOO_LONG = 1.25
"""Factor by which a summary's estimated tokens may exceed those asked for."""
# Without its marks in it, evidence in dialogues (window 2,048) was 82 instead of 86 %: what an extract says last says little. With
# them, 12 of 20 facts were left of a chat of 500 tokens that had nothing else.
_FOLDED, _BRIEF = 1 / 4, 144
"""Share of the tokens it covers that an extract made without asking a model takes with its marks, and tokens up to which it has as
much without them.
"""
_READ = 0.7
"""Share of the goal up to which the answer that the user has just read stays, with its question."""
_LEAST = 0.25
"""Share of the budget that the beginning gets, however large the newest turn is."""
_WORTH_CUTTING = 1 / 8
"""Smallest share of a message that is worth keeping; a message that would be cut to less is dropped."""
_OF_THE_REST = 1 / 2
"""Share of the room beside the newest turn that a summary may take."""
_VERBATIM = 1.45
"""Factor on a summary's size for an extract in its place, which quotes the user and so needs more words."""
_UNUSED = 0.15
"""Share of the budget that may stay unused; if more is left, it is filled from the beginning."""


def head_end(messages: Sequence[Message]) -> int:
    """Return the index after the pinned head: an earlier summary and its bridge or, without one, the first user message.

    If several turns with tool results come before that message, the beginning of the conversation is missing, and nothing
    is pinned.
    """
    first, block = first_user(messages), next((i for i, m in enumerate(messages) if is_summary(m)), None)
    if block is not None:
        return block + 1 + summary.is_bridge(messages, block + 1)
    if first is None or (any(map(is_result, messages[:first])) and len(cut_points(messages[:first])) > 2):
        return 0
    return first + 1


def _tail_start(reduction: Reduction, room: float) -> int | None:
    """Find the index at which the verbatim tail begins: as early as `room` allows, before the newest user turn if that fits.

    Returns None if there is no place to cut. The messages before the tail are covered by the summary, so they never end in
    the newest user message: it would be summarised although it stays verbatim and may yet be edited.
    """
    newest = reduction.newest
    # Tokens of everything before each index.
    upto = [0.0, *accumulate(reduction.costs)]
    point: int | None
    points = [point for point in cut_points(reduction.messages) if reduction.floor <= point < len(reduction.messages)]
    for point in points:
        if point > reduction.floor and point - 1 != newest and is_user(reduction.messages[point - 1]):
            continue  # a question stays with its answer
        moved = newest is not None and reduction.floor <= newest < point
        if upto[-1] - upto[point] + (reduction.costs[newest or 0] if moved else 0.0) <= room:
            break
    else:
        point = points[-1] if points else None
    return newest if point is not None and point - 1 == newest and newest >= reduction.floor else point


def _extract(zone: Sequence[Message], source: Source, reduction: Reduction, tokens: int) -> str:
    """Make an extract of the zone by code, in about as many tokens as a summary would have, without its headings."""
    limit = tokens * 4
    text = extract(zone, source, limit=limit)
    used = reduction.count(text) - reduction.count(f"{EXTRACT}\n{QUOTES}")
    return text if used <= tokens else extract(zone, source, limit=int(limit * tokens / used))


def _within(text: str, reduction: Reduction, tokens: int) -> str:
    """Cut a summary, at a sentence's end, to the length that was asked for: not every backend obeys `max_tokens`."""
    while (used := reduction.count(text)) > _MOST_TOO_LONG * tokens:
        shorter = text[: int(len(text) * tokens / used)]
        text = shorter[: last_end(shorter)].rstrip() or shorter
    return text


@dataclass(frozen=True, slots=True)
class _Plan:
    """Division of a history: the head stays before the block, and the history goes on after it at `start`."""

    reduction: Reduction
    head: Sequence[Message]
    start: int
    newest: int | None = None
    """Index of the newest user message if it is part of the beginning."""
    parts: Sequence[Part] | None = None
    """Messages that the head was chosen from, or None if the head comes from an earlier compaction."""
    folded: tuple[Message, ...] = ()
    """The earlier block, and then its extracts, which the new block replaces."""

    def with_less(self, room: float) -> "_Plan":
        """Return a plan whose head has only what fits into `room` tokens, and the user's last question in any case.

        A message is dropped together with its answer. What is cut in its middle is also covered by the block.
        """
        questions = [m for m in self.reduction.messages if is_user(m) and not is_summary(m)]
        last = next((m for m in reversed(questions) if m.get("content") != BRIDGE), None)
        head: list[Message] = []
        stays = True
        for message, following in zip(self.head, [*self.head[1:], {}], strict=False):
            if message is last or is_summary(message) or message.get("content") == BRIDGE:
                stays = True
                head.append(message)
            elif message.get("role") == "assistant" or is_result(message):
                if is_result(following):
                    rest = sum(self.reduction.cost([message, following]))
                    stays = rest <= room
                    room -= rest if stays else 0.0
                head += [message] if stays else []
            else:
                cost = sum(self.reduction.cost([message]))
                less, rest = cut_message(message, room, self.reduction.cost)
                stays = rest <= room and rest >= cost * _WORTH_CUTTING
                head += [less] if stays else []
                room -= rest if stays else 0.0
        same = len(head) == len(self.head) and all(map(is_, head, self.head))
        return self if same else replace(self, head=head, parts=None)

    @property
    def with_instructions(self) -> "_Plan":
        """The plan with the instructions that the block would cover put before it, and without outdated ones."""
        old, end = self.reduction, next((i for i, m in enumerate(self.head) if is_summary(m)), len(self.head))
        stale = [i for i, group in old.results.items() if i < old.floor and old.kept.keys().isdisjoint(group)]
        gone = {id(old.messages[each]) for at in stale for each in (at - 1, at)}
        front = [message for message in self.head[:end] if id(message) not in gone]
        return replace(self, head=[*front, *old.instructions(old.floor, self.start), *self.head[end:]])

    @property
    def without_extracts(self) -> "_Plan":
        """The plan with the extracts at the end of the earlier block merged, with the rest, into one new extract."""
        at = next((i for i, message in enumerate(self.head) if is_summary(message)), None)
        summaries, extracts = ("", "") if at is None else summary.last_extract(str(self.head[at]["content"]))
        if at is None or not extracts:
            return self
        block = self.head[at]
        rest = [{**block, "content": summaries}, *self.head[at + 1 :]] if summaries else []
        return replace(self, head=[*self.head[:at], *rest], parts=None, folded=(block, {**block, "content": extracts}))

    @property
    def zone(self) -> list[Message]:
        """Messages that the block replaces: all before the tail but those that stay whole (the head and the newest user message)."""
        messages, newest = self.reduction.messages, self.reduction.newest
        verbatim = {*map(id, self.head), *map(id, self.folded[:1])}
        rest = (m for at, m in enumerate(messages[: self.start]) if at != newest and id(m) not in verbatim)
        return [*self.folded[1:], *rest]

    def read_source(self) -> Generator[None, Any, Source]:
        """Collect the source of the block: what the user said in the messages that it replaces and nowhere in those that stay."""
        messages, newest, zone = self.reduction.messages, self.reduction.newest, self.zone
        visible = [*self.head, *messages[self.start :], *messages[slice(newest, newest and newest + 1)]]
        covered = set(map(id, zone))
        begins = (id(message) in covered for message in messages[: self.start])
        places = zip(accumulate(begins, initial=len(self.folded[1:])), messages, strict=False)
        # An earlier summary covers the questions before it.
        told = next((at for at, m in enumerate(messages) if is_summary(m)), 0)
        asked = [(at, m) for at, m in [*places][told:] if is_user(m) and id(m) not in covered]
        source = yield from read_source(zone, visible, asked)
        # Neither the newest message, which may yet be edited, nor what follows it.
        later = yield from read_source([m for m in messages[self.start : newest or 0] if is_user(m)], ())
        head = yield from read_source([m for m in self.head if is_user(m)], ())
        return replace(source, newer=newer_statements((*head.statements, *source.statements), later.statements))


def summarise(
    reduction: Reduction, pruned: Reduction, by: Summariser, *, always: bool
) -> Sliced[tuple[Reduction | None, tuple[str, ...]]]:
    """Summarise the unpruned history, which the backend has cached byte for byte; the tail is kept in its pruned form.

    If a model's summary is not worth its time, code appends an extract to the existing blocks instead.
    """
    wanted, by = by.tokens, replace(by, tokens=_summary_size(by.tokens, pruned))
    plan = _planned(reduction, pruned, by)
    if plan is None or (new := _tokens_covered(plan)) <= 0:
        return None, ()
    block, due = _block(plan.reduction), new
    if block is not None and _outgrown(plan, block, pruned, by):
        due += plan.reduction.costs[block]
    # With next to no room for a summary, a model does no better than an extract.
    asks = always or (due >= reduction.limits.worth and by.tokens >= wanted // 4)
    if asks and block is not None and due > new:
        plan = _merged(plan, block, pruned, by)
        new = _tokens_covered(plan)
    if new - by.tokens < reduction.limits.minimum_gain:
        return None, ()
    source = yield from plan.read_source()
    text = (yield from request_summary(plan.reduction, by, plan.start, source)) if asks else ""
    folded = max(new * _FOLDED - reduction.count(summary.block("", (), limit=0)), min(new * _FOLDED, _BRIEF))
    size = by.tokens if text else int(min(by.tokens * (_VERBATIM if asks else 1), folded))
    compacted = _condensed(plan, pruned, text, size, source)
    for smaller in _reductions(plan, compacted, extracts=not asks):
        if compacted.total > compacted.enough:
            source, size = (yield from smaller.read_source()), by.tokens if smaller.folded else size
            compacted = _condensed(smaller, pruned, text, size, source)
    gained = compacted.total < reduction.total - reduction.limits.minimum_gain
    return (compacted, ("summarise" if text else "extract",)) if gained else (None, ())


def _reductions(plan: _Plan, compacted: Reduction, *, extracts: bool) -> Iterator[_Plan]:
    """Yield plans with less and less before the newest turn, for histories whose newest turn takes most of the room."""
    opening = [m for m in plan.head if not is_summary(m) and m.get("content") != BRIDGE]
    over = compacted.total - compacted.enough
    bare = plan.with_less(sum(compacted.cost(opening)) - over)
    if bare is not plan:
        yield bare
    if extracts and bare.without_extracts is not bare:
        yield bare.without_extracts


def _condensed(plan: _Plan, pruned: Reduction, text: str, size: int, source: Source) -> Reduction:
    """Return the history with its block: `text`, or an extract of `size` tokens if that is empty."""
    zone = plan.zone
    written = _within(text or _extract(zone, source, plan.reduction, size), plan.reduction, size)
    return _with_more_opening(plan, pruned, summary.block(written, zone, limit=size, source=source, before=plan.head))


def _planned(reduction: Reduction, pruned: Reduction, by: Summariser) -> _Plan | None:
    """Choose what stays, or return None if there is no place to cut."""
    newest = reduction.newest
    brought = sum(reduction.cost(reduction.instructions(reduction.floor, len(reduction.messages))))
    if _block(reduction) is not None or not reduction.floor:
        head = reduction.messages[: reduction.floor]
        start = _tail_start(pruned, _tail_room(pruned, sum(reduction.costs[: reduction.floor]) + by.tokens + brought))
        return None if start is None else _Plan(reduction, head, start).with_instructions
    reduction, pruned = replace(reduction, floor=0), replace(pruned, floor=0)
    begins = newest if newest is not None and newest < beginning(reduction.messages) else None
    room = max(reduction.budget * _LEAST, reduction.budget - by.tokens / 2 - least_tail(pruned) - brought)
    end = len(reduction.messages) if newest is None else newest
    parts = parts_of(reduction.messages, end)
    head = opening(reduction, parts, end, room, forced=begins)
    start = _tail_start(pruned, _tail_room(pruned, _pinned(reduction, head, begins) + by.tokens + brought))
    if start is None:
        return None
    begins = begins if begins is not None and begins < start else None
    head = opening(reduction, parts, min(end, start), room, forced=begins)
    return _Plan(reduction, head, start, begins, parts).with_instructions


def _tail_room(reduction: Reduction, others: float) -> float:
    """Return the tokens left for the tail beside `others`, stretched towards `enough` if the newest answer just misses."""
    room, read = reduction.budget - others, least_tail(reduction)
    return read + 1 if room <= read < reduction.enough - others else room  # +1: float sums depend on their order


def _summary_size(tokens: int, reduction: Reduction) -> int:
    """Return a summary's size: `tokens`, or half of the room beside the newest turn if that is less, so that the next turn fits."""
    room = reduction.enough - least_tail(reduction)
    return min(tokens, max(SMALLEST, int(room * _OF_THE_REST)))


def _merged(plan: _Plan, block: int, pruned: Reduction, by: Summariser) -> _Plan:
    """Return a plan in which the new block replaces the earlier one, whose room goes to the tail.

    The tail does not grow where that would only add calls and the notes for their results: the block covers them better.
    """
    merged, start = replace(plan.reduction, floor=block), None
    if not any(map(is_result, merged.messages[plan.reduction.floor : plan.start])):
        start = _tail_start(pruned, _tail_room(pruned, sum(merged.costs[:block]) + by.tokens))
    head = unfinished(merged.messages, block)
    return replace(plan, reduction=merged, head=head, start=start or plan.start).with_instructions


def _pinned(reduction: Reduction, head: Sequence[Message], newest: int | None) -> float:
    """Return the tokens of a head without the newest user message, which counts towards the tail wherever it is."""
    return sum(reduction.cost(head)) - (reduction.costs[newest] if newest is not None else 0.0)


def least_tail(reduction: Reduction) -> float:
    """Return the tokens of the smallest tail: the last step, and the newest user message with the answer that it follows.

    The question before that answer belongs to it; neither is counted if the question is more than twice as long as the
    answer, or both do not fit well.
    """
    costs, newest, last = reduction.costs, reduction.newest, cut_points(reduction.messages)[-2:][0]
    if newest is None or newest < last:
        return sum(costs[last:]) + (0.0 if newest is None else costs[newest])
    question = newest_user(reduction.messages[:newest])
    if question is None or costs[question] > 2 * sum(costs[question + 1 : newest]):
        return sum(costs[last:])
    read = sum(costs[question:])
    return read if read <= reduction.enough * _READ else sum(costs[last:])


def _with_more_opening(plan: _Plan, pruned: Reduction, block: str) -> Reduction:
    """Return the history with its block, and with more of its beginning if the finished block leaves room."""
    old = plan.reduction
    uncovered = replace(
        old,
        messages=[*old.messages[: plan.start], *pruned.messages[plan.start :]],
        leans={index: end for index, end in pruned.leans.items() if index >= plan.start},
    )
    compacted = _with_summary(uncovered, plan, block)
    spare = old.budget - compacted.total
    if plan.parts is None or spare < old.budget * _UNUSED:
        return compacted
    end = plan.start if old.newest is None else min(plan.start, old.newest)
    pinned = _pinned(old, plan.head, plan.newest)
    pinned -= sum(old.cost(old.instructions(0, plan.start)))
    head = opening(old, plan.parts, end, pinned + spare, forced=plan.newest, others=True)
    fuller = _with_summary(uncovered, replace(plan, head=head).with_instructions, block)
    return fuller if fuller.total <= fuller.budget else compacted


def _tokens_covered(plan: _Plan) -> float:
    """Return the tokens that the block replaces: neither the newest user message nor the head counts."""
    old, newest = plan.reduction, plan.reduction.newest
    stays = newest is not None and old.floor <= newest < plan.start
    between = sum(old.costs[old.floor : plan.start]) - (old.costs[newest or 0] if stays else 0.0)
    known = 0.0 if plan.parts is not None else sum(old.costs[: old.floor])
    return between - max(0.0, _pinned(old, plan.head, plan.newest) - known)


def _block(reduction: Reduction) -> int | None:
    """Return the index of the earlier block, which stays as it is until the blocks together outgrow their budget."""
    return next((i for i in range(reduction.floor) if is_summary(reduction.messages[i])), None)


def _outgrown(plan: _Plan, block: int, pruned: Reduction, by: Summariser) -> bool:
    """Return whether to summarise the earlier summaries too, because they are large or one more would not fit."""
    old = plan.reduction
    pinned, rest = sum(old.costs[: old.floor]), sum(pruned.costs[old.floor :])
    total = pinned + rest - _tokens_covered(replace(plan, reduction=replace(old, costs=pruned.costs))) + by.tokens
    return old.costs[block] > 2 * by.tokens or total > old.budget


def _with_summary(reduction: Reduction, plan: _Plan, block: str) -> Reduction:
    """Return the history with a summary between head and tail, such that user and assistant alternate.

    Earlier blocks stay unchanged before it. If the newest user message lies before the tail, it is moved, whole, after the block.
    """
    messages, newest = reduction.messages, reduction.newest
    head = list(plan.head)
    if summary.is_bridge(head, len(head) - 1):
        head.pop()
    while head and is_summary(head[-1]):
        block = f"{head.pop()['content']}\n{block}"
    rest = list(messages[plan.start :])
    if newest is not None and plan.newest is None and reduction.floor <= newest < plan.start:
        rest.insert(0, messages[newest])
    speaker = next((m.get("role") for m in reversed(head) if m.get("role") not in SYSTEM_ROLES), "assistant")
    summarised: Message = {"role": "user" if speaker == "assistant" else "assistant", "content": block}
    role = bridge_needed(summarised, rest)
    bridge = [{"role": role, "content": BRIDGE if role == "user" else NOTED}] if role else []
    shorter = [*head, summarised, *bridge, *rest]
    return replace(reduction, messages=shorter, costs=reduction.cost(shorter), floor=len(head) + 1)
