"""Mask old tool results: name, size and first characters stay."""

from __future__ import annotations

from proxy.core.ladder.base import Job
from proxy.core.ladder.results import NOTE, Result, by_message, results_of, unread_from, with_texts
from proxy.core.turns import is_result, newest_user

_OPEN = f"{NOTE} to save room: "
_SHOWN = 120


class Mask:
    """Masks tool results oldest first, never the newest, in one batch worth at least the minimum gain."""

    name = "mask"

    def shorten(self, job: Job) -> Job:
        """Replace results from the oldest on until the budget is kept and the minimum is gained."""
        messages = list(job.messages)
        saved, wanted = 0.0, max(job.total - job.budget, job.limits.minimum_gain)
        for index, results in _maskable(job).items():
            masked = with_texts(messages[index], {r: _note(r) for r in results if not r.is_note})
            gain = job.costs[index] - job.cost([masked])[0]
            if gain <= 0:
                continue
            messages[index] = masked
            saved += gain
            if saved >= wanted:
                break
        return job.with_messages(messages) if saved > 0 and saved >= job.limits.minimum_gain else job


def _maskable(job: Job) -> dict[int, list[Result]]:
    """Old results by message, oldest first."""
    results = by_message(results_of(job.messages))
    user = newest_user(job.messages)
    end = min(unread_from(job.messages), job.tail)
    protected = 0.0
    old: list[int] = []
    for index in sorted((i for i in results if i >= job.floor), reverse=True):
        protected += _size(job, index, results[index])
        if index < end and index != user and protected > job.limits.protect_newest:
            old.append(index)
    return {index: results[index] for index in reversed(old)}


def _size(job: Job, index: int, results: list[Result]) -> float:
    """Tokens of the results of a message, without the user's words around them."""
    if is_result(job.messages[index]):
        return job.costs[index]
    return sum(job.cost([{"role": "tool", "content": result.text} for result in results]))


def _note(result: Result) -> str:
    text = result.text
    start = " ".join(text[: _SHOWN * 2].split())[:_SHOWN]
    return f"{_OPEN}{result.name}, {len(text)} characters. It began: {start} … Call the tool again if you need it.]"
