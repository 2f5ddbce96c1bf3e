"""Plan and place a summary: which part of the beginning stays, where the tail begins, and the block between."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import is_

from proxy.compaction import summary
from proxy.compaction.asking import Summariser, SummaryAsk, request_summary
from proxy.compaction.extract import extract
from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import cut_message
from proxy.compaction.opening import Part, beginning, opening, parts_of, unfinished
from proxy.compaction.source import Source, source_of
from proxy.core.history.marks import BRIDGE, NOTED, is_summary
from proxy.core.history.sentences import last_end
from proxy.core.history.turns import bridge_needed, cut_points, first_user, is_result, is_user, newest_user
from proxy.core.request import SYSTEM_ROLES, Message

_MOST_TOO_LONG = 1.25
"""Of the tokens asked for, what a summary may have by the estimate."""
_FOLDED = 1 / 4
"""Share of its tokens that is left of what is put in short by code."""
_READ = 0.7
"""Share of the room up to which the answer that the user has just read stays."""
_LEAST = 0.25
"""Share of the room that the beginning has, however large the newest turn is."""
_WORTH_CUTTING = 1 / 8
"""Share of a message of the beginning that has to be left of it, if it is to be cut."""
_OF_THE_REST = 1 / 2
"""Share of what the newest turn leaves of the room, that a summary may take."""
_SMALLEST = 96
"""Tokens of a summary that says anything."""
_VERBATIM = 1.45
"""Times the room of a summary that an extract may have: it takes the user's words as they are."""
_UNUSED = 0.15
"""Share of the room that may be left unused; more is filled from the beginning."""


def head_end(messages: Sequence[Message]) -> int:
    """Index after the pinned head: the summary that is there with its bridge, else the first user message.

    Where several turns with tool results come before that, the beginning of the conversation is missing: none is pinned.
    """
    first, block = first_user(messages), next((i for i, m in enumerate(messages) if is_summary(m)), None)
    if block is not None:
        return block + 1 + summary.is_bridge(messages, block + 1)
    if first is None or (any(map(is_result, messages[:first])) and len(cut_points(messages[:first])) > 2):
        return 0  # its beginning is lacking
    return first + 1


def _tail_start(reduction: Reduction, room: float) -> int | None:
    """Index at which the verbatim tail begins: as early as `room` allows, before the newest user turn if that fits.

    None if there is no place to cut. What lies before it is summarised and covered, so it never ends in the newest user
    message: that one would be told of, though it stays as it is and may yet be edited.
    """
    newest = reduction.newest
    # Tokens of everything before an index.
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
    """Extract of it made by code, in about as many tokens as a summary."""
    limit = tokens * 4
    text = extract(zone, source, limit=limit)
    used = reduction.count(text)
    return text if used <= tokens else extract(zone, source, limit=int(limit * tokens / used))


def _within(text: str, reduction: Reduction, tokens: int) -> str:
    """A summary without what it has above the length that was asked for: not every backend keeps that."""
    while (used := reduction.count(text)) > _MOST_TOO_LONG * tokens:
        shorter = text[: int(len(text) * tokens / used)]
        text = shorter[: last_end(shorter)].rstrip() or shorter
    return text


@dataclass(frozen=True, slots=True)
class _Plan:
    """Head in front of the block, and the part of the history that the block stands for."""

    reduction: Reduction
    head: Sequence[Message]
    start: int
    newest: int | None = None
    """Index of the newest user message, where it belongs to the beginning."""
    parts: Sequence[Part] | None = None
    """What the head was chosen from; None: it is that of an earlier compaction."""
    folded: tuple[Message, ...] = ()
    """The earlier block, and of it what is told anew."""

    def with_less(self, room: float) -> "_Plan":
        """The same, where of the beginning as much stays as `room` tokens hold, and what the user asked last.

        Each message goes with its answer; what is cut in its middle is told in the block, too.
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
        """The same, with the instructions that the block would cover in front of it, and without those that are replaced."""
        old, end = self.reduction, next((i for i, m in enumerate(self.head) if is_summary(m)), len(self.head))
        stale = [i for i, group in old.results.items() if i < old.floor and old.kept.keys().isdisjoint(group)]
        gone = {id(old.messages[each]) for at in stale for each in (at - 1, at)}
        front = [message for message in self.head[:end] if id(message) not in gone]
        return replace(self, head=[*front, *old.instructions(old.floor, self.start), *self.head[end:]])

    @property
    def without_extracts(self) -> "_Plan":
        """The same, where what code told last of all is told anew with the rest, in one extract."""
        at = next((i for i, message in enumerate(self.head) if is_summary(message)), None)
        summaries, extracts = ("", "") if at is None else summary.last_extract(str(self.head[at]["content"]))
        if at is None or not extracts:
            return self
        block = self.head[at]
        rest = [{**block, "content": summaries}, *self.head[at + 1 :]] if summaries else []
        return replace(self, head=[*self.head[:at], *rest], parts=None, folded=(block, {**block, "content": extracts}))

    @property
    def zone(self) -> list[Message]:
        """Messages that the block stands for: not those that stay whole, in front of it or, as the newest user message, behind it."""
        messages, newest = self.reduction.messages, self.reduction.newest
        verbatim = {*map(id, self.head), *map(id, self.folded[:1])}
        rest = (m for at, m in enumerate(messages[: self.start]) if at != newest and id(m) not in verbatim)
        return [*self.folded[1:], *rest]

    @property
    def source(self) -> Source:
        """What the user said in what the block stands for, and nowhere in what stays."""
        messages, newest, zone = self.reduction.messages, self.reduction.newest, self.zone
        visible = [*self.head, *messages[self.start :], *messages[slice(newest, newest and newest + 1)]]
        covered = set(map(id, zone))
        begins = (id(message) in covered for message in messages[: self.start])
        places = zip(accumulate(begins, initial=len(self.folded[1:])), messages, strict=False)
        told = next((at for at, m in enumerate(messages) if is_summary(m)), 0)  # what was asked before it is told there
        asked = [(at, m) for at, m in [*places][told:] if is_user(m) and id(m) not in covered]
        return source_of(zone, visible, asked)


def summarise(
    reduction: Reduction, pruned: Reduction, by: Summariser, *, always: bool
) -> Generator[SummaryAsk, str, tuple[Reduction | None, tuple[str, ...]]]:
    """Summarise the unpruned history, whose bytes the backend has cached; the tail is kept as it was pruned.

    What is not worth asking a model for is put in short by code, behind the blocks that there are.
    """
    wanted, by = by.tokens, replace(by, tokens=_size(by.tokens, pruned))
    plan = _planned(reduction, pruned, by)
    if plan is None or (new := _new(plan)) <= 0:
        return None, ()
    block, due = _block(plan.reduction), new
    if block is not None and _outgrown(plan, block, pruned, by):
        due += plan.reduction.costs[block]
    # What has to be told in next to nothing a model tells no better.
    asks = always or (due >= reduction.limits.worth and by.tokens >= wanted // 4)
    if asks and block is not None and due > new:
        plan = _merged(plan, block, pruned, by)
        new = _new(plan)
    if new - by.tokens < reduction.limits.minimum_gain:
        return None, ()
    source = plan.source
    text = (yield from request_summary(plan.reduction, by, plan.start, source)) if asks else ""
    size = by.tokens if text else int(min(by.tokens * (_VERBATIM if asks else 1), new * _FOLDED))
    compacted = _condensed(plan, pruned, text, size, source)
    for smaller in _reductions(plan, compacted, extracts=not asks):
        if compacted.total > compacted.goal:
            compacted = _condensed(smaller, pruned, text, by.tokens if smaller.folded else size)
    gained = compacted.total < reduction.total - reduction.limits.minimum_gain
    return (compacted, ("summarise" if text else "extract",)) if gained else (None, ())


def _reductions(plan: _Plan, compacted: Reduction, *, extracts: bool) -> Iterator[_Plan]:
    """Plans with less and less in front of the newest turn, for where that takes what room there is."""
    opening = [m for m in plan.head if not is_summary(m) and m.get("content") != BRIDGE]
    over = compacted.total - compacted.goal
    bare = plan.with_less(sum(compacted.cost(opening)) - over)
    if bare is not plan:
        yield bare
    if extracts and bare.without_extracts is not bare:
        yield bare.without_extracts


def _condensed(plan: _Plan, pruned: Reduction, text: str, size: int, source: Source | None = None) -> Reduction:
    """The history with its block: this text, or what code makes of it in as many tokens."""
    zone = plan.zone
    source = source or plan.source
    written = _within(text or _extract(zone, source, plan.reduction, size), plan.reduction, size)
    return _filled(plan, pruned, summary.block(written, zone, limit=size, source=source, before=plan.head))


def _planned(reduction: Reduction, pruned: Reduction, by: Summariser) -> _Plan | None:
    """Choose what stays; None if there is no place to cut."""
    newest = reduction.newest
    brought = sum(reduction.cost(reduction.instructions(reduction.floor, len(reduction.messages))))
    if _block(reduction) is not None or not reduction.floor:
        head = reduction.messages[: reduction.floor]
        start = _tail_start(pruned, _room(pruned, sum(reduction.costs[: reduction.floor]) + by.tokens + brought))
        return None if start is None else _Plan(reduction, head, start).with_instructions
    reduction, pruned = replace(reduction, floor=0), replace(pruned, floor=0)
    begins = newest if newest is not None and newest < beginning(reduction.messages) else None
    room = max(reduction.budget * _LEAST, reduction.budget - by.tokens / 2 - least_tail(pruned) - brought)
    end = len(reduction.messages) if newest is None else newest
    parts = parts_of(reduction.messages, end)
    head = opening(reduction, parts, end, room, forced=begins)
    start = _tail_start(pruned, _room(pruned, _pinned(reduction, head, begins) + by.tokens + brought))
    if start is None:
        return None
    begins = begins if begins is not None and begins < start else None
    head = opening(reduction, parts, min(end, start), room, forced=begins)
    return _Plan(reduction, head, start, begins, parts).with_instructions


def _room(reduction: Reduction, others: float) -> float:
    """Tokens that the tail may take beside `others`: what is left, and a little more for what the user has just read."""
    room, read = reduction.budget - others, least_tail(reduction)
    return read + 1 if room <= read < reduction.goal - others else room  # sums differ by their order


def _size(tokens: int, reduction: Reduction) -> int:
    """Tokens of a summary, so many if the newest turn leaves room: it must not take all that is left to what comes next."""
    room = reduction.goal - least_tail(reduction)
    return min(tokens, max(_SMALLEST, int(room * _OF_THE_REST)))


def _merged(plan: _Plan, block: int, pruned: Reduction, by: Summariser) -> _Plan:
    """The same, where the earlier block becomes part of the new one: its room is the tail's.

    Not where that would be filled with calls and the notes for their results, which are told better in the block.
    """
    merged, start = replace(plan.reduction, floor=block), None
    if not any(map(is_result, merged.messages[plan.reduction.floor : plan.start])):
        start = _tail_start(pruned, _room(pruned, sum(merged.costs[:block]) + by.tokens))
    head = unfinished(merged.messages, block)
    return replace(plan, reduction=merged, head=head, start=start or plan.start).with_instructions


def _pinned(reduction: Reduction, head: Sequence[Message], newest: int | None) -> float:
    """Tokens of a head, without those of the newest user message, which is counted with the tail wherever it stands."""
    return sum(reduction.cost(head)) - (reduction.costs[newest] if newest is not None else 0.0)


def least_tail(reduction: Reduction) -> float:
    """Tokens of the last step, of the newest user message, and of the answer before it with its question, if that is not much longer."""
    costs, newest, last = reduction.costs, reduction.newest, cut_points(reduction.messages)[-2:][0]
    if newest is None or newest < last:
        return sum(costs[last:]) + (0.0 if newest is None else costs[newest])
    question = newest_user(reduction.messages[:newest])
    if question is None or costs[question] > 2 * sum(costs[question + 1 : newest]):
        return sum(costs[last:])
    read = sum(costs[question:])
    return read if read <= reduction.goal * _READ else sum(costs[last:])


def _filled(plan: _Plan, pruned: Reduction, block: str) -> Reduction:
    """The history with its block, and as much more of its beginning as there is room for when the block is known."""
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


def _new(plan: _Plan) -> float:
    """Tokens that the block is to stand for: neither those of the newest user message nor those of the head."""
    old, newest = plan.reduction, plan.reduction.newest
    stays = newest is not None and old.floor <= newest < plan.start
    between = sum(old.costs[old.floor : plan.start]) - (old.costs[newest or 0] if stays else 0.0)
    known = 0.0 if plan.parts is not None else sum(old.costs[: old.floor])
    return between - max(0.0, _pinned(old, plan.head, plan.newest) - known)


def _block(reduction: Reduction) -> int | None:
    """Index of the earlier summary, which stays frozen until together they outgrow their budget."""
    return next((i for i in range(reduction.floor) if is_summary(reduction.messages[i])), None)


def _outgrown(plan: _Plan, block: int, pruned: Reduction, by: Summariser) -> bool:
    """Return whether earlier summaries are to be summarised too: they are large, or one more would be too much."""
    old = plan.reduction
    pinned, rest = sum(old.costs[: old.floor]), sum(pruned.costs[old.floor :])
    total = pinned + rest - _new(replace(plan, reduction=replace(old, costs=pruned.costs))) + by.tokens
    return old.costs[block] > 2 * by.tokens or total > old.budget


def _with_summary(reduction: Reduction, plan: _Plan, block: str) -> Reduction:
    """The history with a summary in place of what lies between head and tail, such that user and assistant take turns.

    Earlier blocks stay as they are, in front of it. A newest user message that is covered stays whole behind it.
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
