"""The ladder: ways to shorten a history without a model, each of which replaces messages one for one or leaves turns out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeAlias

from proxy.compaction.policy import PruneLimits
from proxy.compaction.results import NOTE, Cost, Result, by_message, note_for, results_of, unread_from, with_texts
from proxy.core.history.embedded import IMAGE_OMITTED
from proxy.core.history.turns import bridge_needed, cut_points, is_result, newest_user
from proxy.core.request import SYSTEM_ROLES, Message

NEWEST_IMAGES = 3
"""The newest images, which stay."""
OMITTED = "[Earlier messages were left out here to fit the context window.]"
_SAME = NOTE + ": a later call of {} returned the same, see there.]"
_SUPERSEDED = NOTE + ": {} was called again with the same arguments, see the newer result.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A history to shorten: the messages after the leading system messages, and the room they may take, in tokens."""

    messages: Sequence[Message]
    costs: Sequence[float]
    """Predicted tokens of each message."""
    floor: int
    """Index of the first message that may change: what is before it is pinned or frozen."""
    tail: int
    """Index at which the protected newest messages begin."""
    budget: float
    """What all messages together may have."""
    limits: PruneLimits
    cost: Cost
    enough: float = 0.0
    """At so many, if they are more than `budget`, no model is asked."""
    unread: float = math.inf
    """Up to so many what the model has not read yet is not shortened for less."""
    roomy: float = math.inf
    """At so many an answer still has room."""
    recallable: float = math.inf
    """To so many the newest user message is brought where it has to be cut: pieces of it can be recalled then."""
    leans: Mapping[int, int] = field(default_factory=dict)
    """Messages that point at a later one, by their index, and the index behind that: it is covered with them."""

    @property
    def total(self) -> float:
        """Tokens of all messages."""
        return sum(self.costs)

    @property
    def fits(self) -> bool:
        """Return whether the budget is kept."""
        return self.total <= self.budget

    @property
    def goal(self) -> float:
        """Tokens at which no model has to be asked."""
        return max(self.budget, self.enough)

    def with_messages(self, messages: Sequence[Message]) -> Reduction:
        """The same after messages were replaced one for one; the same object if that saves nothing."""
        costs = list(self.costs)
        changed = [index for index, message in enumerate(messages) if message is not self.messages[index]]
        for index, cost in zip(changed, self.cost([messages[index] for index in changed]), strict=True):
            costs[index] = cost
        return replace(self, messages=messages, costs=costs) if sum(costs) < self.total else self

    def old(self, results: Sequence[Result]) -> dict[int, list[Result]]:
        """Those results, by message, that may be shortened: the model has read them, and the newest user message stays."""
        user, end = newest_user(self.messages), min(unread_from(self.messages), self.tail)
        groups = by_message(results).items()
        return {index: group for index, group in groups if self.floor <= index < end and index != user}


Rung: TypeAlias = Callable[[Reduction], Reduction]
"""Shortens a history without a model between `floor` and `tail`; the same reduction if nothing is to gain."""


def mask_results(reduction: Reduction) -> Reduction:
    """Replace results by notes, from the oldest on, until the budget is kept and the minimum is gained."""
    messages, results = list(reduction.messages), results_of(reduction.messages)
    old = reduction.old(results)
    protected = 0.0
    for index, group in reversed(by_message(results).items()):
        protected += _tokens_of(reduction, index, group)
        if protected <= reduction.limits.protect_newest:
            old.pop(index, None)
    saved, wanted = 0.0, max(reduction.total - reduction.budget, reduction.limits.minimum_gain)
    for index, group in old.items():
        masked = with_texts(messages[index], {result: note_for(result) for result in group if result.is_long})
        if (gain := reduction.costs[index] - sum(reduction.cost([masked]))) > 0:
            messages[index] = masked
            saved += gain
        if saved >= wanted:
            break
    return reduction.with_messages(messages) if saved >= reduction.limits.minimum_gain else reduction


def _tokens_of(reduction: Reduction, index: int, results: Sequence[Result]) -> float:
    """Tokens of the results of a message, without the user's words around them."""
    if is_result(reduction.messages[index]):
        return reduction.costs[index]
    return sum(reduction.cost([{"role": "tool", "content": result.text} for result in results]))


def drop_duplicates(reduction: Reduction) -> Reduction:
    """Replace what a later message makes needless: repeated results, superseded reads, stale images."""
    messages, results = list(reduction.messages), results_of(reduction.messages)
    user, leans = newest_user(messages), dict(reduction.leans)
    pointers = _pointers(results, unread_from(messages))
    for index, group in by_message([result for result in results if result in pointers]).items():
        changed = with_texts(messages[index], {result: pointers[result][0] for result in group})
        if reduction.floor <= index < reduction.tail and index != user and _is_cheaper(reduction, index, changed):
            messages[index] = changed
            leans[index] = 1 + max(pointers[result][1] for result in group)
    for index, parts in _stale_images(messages).items():
        changed = _without_images(messages[index], parts)
        if reduction.floor <= index < reduction.tail and index != user and _is_cheaper(reduction, index, changed):
            messages[index] = changed
    return replace(reduction.with_messages(messages), leans=leans)


def _is_cheaper(reduction: Reduction, index: int, changed: Message) -> bool:
    return sum(reduction.cost([changed])) < reduction.costs[index]


def _pointers(results: Sequence[Result], unread: int) -> dict[Result, tuple[str, int]]:
    """Notes for results that a later one repeats, or replaces, each with the index of that one's message."""
    pointers: dict[Result, tuple[str, int]] = {}
    texts: dict[str, int] = {}
    # The message that has the newest answer to a call: all of its parts belong to that answer.
    answers: dict[tuple[str, str | None], int] = {}
    for result in reversed(results):
        if result.is_note:
            continue
        newest = answers.setdefault((result.name, result.arguments), result.index)
        if result.text in texts:
            pointers[result] = _SAME.format(result.name), texts[result.text]
        elif result.arguments is not None and newest != result.index < unread:
            pointers[result] = _SUPERSEDED.format(result.name), newest
        else:
            texts[result.text] = result.index
    return {result: (note, at) for result, (note, at) in pointers.items() if len(note) < len(result.text)}


def _stale_images(messages: Sequence[Message]) -> dict[int, set[int]]:
    """Indexes of the images' parts by message, without the newest images."""
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and message.get("role") in ("user", "tool"):
            found += ((index, at) for at, part in enumerate(content) if _is_image(part))
    stale: dict[int, set[int]] = {}
    for index, at in found[:-NEWEST_IMAGES]:
        stale.setdefault(index, set()).add(at)
    return stale


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and "image" in str(part.get("type"))


def _without_images(message: Message, parts: set[int]) -> Message:
    placeholder = {"type": "text", "text": IMAGE_OMITTED}
    return {**message, "content": [placeholder if at in parts else part for at, part in enumerate(message["content"])]}


def drop_oldest(reduction: Reduction) -> Reduction:
    """Leave out whole turns from `floor` on until the budget is kept; never the tail.

    As many as it takes, all of them if that is not enough; where user and assistant would no longer take
    turns, a message that says what happened stands in between.
    """
    messages, floor = reduction.messages, reduction.floor
    # Tokens of everything before an index.
    upto = [0.0, *accumulate(reduction.costs)]
    mark_cost = sum(reduction.cost([{"role": "assistant", "content": OMITTED}]))
    speakers = _next_speakers(messages)
    before = messages[floor - 1] if floor else None
    least, best = reduction.total, None
    for end in cut_points(messages):
        if not floor < end <= reduction.tail:
            continue
        role = bridge_needed(before, [each for each in (speakers[end],) if each is not None])
        marks = [{"role": role, "content": OMITTED}] if role else []
        total = upto[-1] - (upto[end] - upto[floor]) + mark_cost * len(marks)
        if total < least:
            least, best = total, (end, marks)
        if total <= reduction.budget:
            break
    if best is None:
        return reduction
    end, marks = best
    shorter = [*messages[:floor], *marks, *messages[end:]]
    return replace(reduction, messages=shorter, costs=reduction.cost(shorter))


def _next_speakers(messages: Sequence[Message]) -> list[Message | None]:
    """For every index and the end: the next message from there on that is not the system's."""
    following: Message | None = None
    speakers = [following]
    for message in reversed(messages):
        following = following if message.get("role") in SYSTEM_ROLES else message
        speakers.append(following)
    return speakers[::-1]
