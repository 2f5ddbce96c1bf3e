"""Mask old tool results: name, size and first characters stay."""

from __future__ import annotations

from proxy.compaction.ladder.base import Reduction
from proxy.compaction.ladder.results import (
    NOTE_START,
    Result,
    by_message,
    note_for,
    results_of,
    unread_from,
    with_texts,
)
from proxy.core.history.turns import is_result, newest_user


def mask_results(reduction: Reduction) -> Reduction:
    """Replace results from the oldest on until the budget is kept and the minimum is gained."""
    messages = list(reduction.messages)
    saved, wanted = 0.0, max(reduction.total - reduction.budget, reduction.limits.minimum_gain)
    for index, results in _maskable(reduction).items():
        masked = with_texts(messages[index], {r: note_for(r) for r in results if _is_long(r)})
        gain = reduction.costs[index] - reduction.cost([masked])[0]
        if gain <= 0:
            continue
        messages[index] = masked
        saved += gain
        if saved >= wanted:
            break
    return reduction.with_messages(messages) if saved > 0 and saved >= reduction.limits.minimum_gain else reduction


def _maskable(reduction: Reduction) -> dict[int, list[Result]]:
    """Old results by message, oldest first."""
    results = by_message(results_of(reduction.messages))
    user = newest_user(reduction.messages)
    end = min(unread_from(reduction.messages), reduction.tail)
    protected = 0.0
    old: list[int] = []
    for index in sorted((i for i in results if i >= reduction.floor), reverse=True):
        protected += _size(reduction, index, results[index])
        if index < end and index != user and protected > reduction.limits.protect_newest:
            old.append(index)
    return {index: results[index] for index in reversed(old)}


def _size(reduction: Reduction, index: int, results: list[Result]) -> float:
    """Tokens of the results of a message, without the user's words around them."""
    if is_result(reduction.messages[index]):
        return reduction.costs[index]
    return sum(reduction.cost([{"role": "tool", "content": result.text} for result in results]))


def _is_long(result: Result) -> bool:
    """Return whether a note could be shorter."""
    return len(result.text) > len(NOTE_START) and not result.is_note
