"""Cutting the middle out of a message: its beginning and end stay, and a mark says how much is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from proxy.history.tooltext import Span, calls_in, results_in, texts_of
from proxy.history.turns import newest_user
from proxy.neutral.request import Message

_MARK = "\n[… {} characters left out here to fit the context window …]\n"
_MARKED = re.compile(re.escape(_MARK).replace(r"\{\}", r"(\d{1,12})"))
_LEAST = 400
"""Characters that are left of a text at least."""
_TRIES = 3
LEAST_LEFT = 1 / 10
"""Share of the newest user message below which what is left of it is no message any more."""


def cut_middle(
    message: Message, cost: float, excess: float, count: Callable[[Sequence[Message]], list[float]]
) -> tuple[Message, float]:
    """The message with so many tokens less, or as few as may be; as it is if that would gain nothing."""
    best, best_cost = message, cost
    longest = max(map(len, _texts(message)), default=0)
    if longest <= _LEAST:
        return best, best_cost
    # Tokens are not spread evenly over the characters, so the first guess may miss.
    share = 1 - (excess + 1) / cost if cost > 0 else 0.0
    for _ in range(_TRIES):
        keep = max(_LEAST, int(longest * share))
        shorter = _with_texts(message, partial(_middle_cut, keep=keep))
        shorter_cost = sum(count([shorter]))
        if shorter_cost < best_cost:
            best, best_cost = shorter, shorter_cost
        if best_cost <= cost - excess or keep == _LEAST:
            break
        share *= 0.9 * max(0.0, cost - excess) / shorter_cost
    return best, best_cost


def newest_cut(sent: Sequence[Message], history: Sequence[Message]) -> tuple[Message, Message] | None:
    """The newest user message as it was sent and as it is in the history, if more is left out of its middle there."""
    newest, placed = newest_user(sent), newest_user(history)
    if newest is None or placed is None:
        return None
    whole, left = sent[newest], history[placed]
    return (whole, left) if left is not whole and _cut_out(left) > _cut_out(whole) else None


def _cut_out(message: Message) -> int:
    """Characters that marks in a message say are left out of it."""
    return sum(int(mark.group(1)) for _, text in texts_of(message) for mark in _MARKED.finditer(text))


def _middle_cut(text: str, *, keep: int) -> str:
    head, tail = text[: keep // 2], text[len(text) - (keep - keep // 2) :]
    # What an earlier cut took out is gone as well.
    earlier = list(_MARKED.finditer(text, len(head), max(len(head), len(text) - len(tail))))
    gone = sum(int(mark.group(1)) - len(mark.group()) for mark in earlier)
    mark = _MARK.format(len(text) - keep + gone)
    return text if len(text) <= keep + len(mark) else f"{head}{mark}{tail}"


def _pieces(role: Any, text: str) -> list[Span]:
    """Where a text may be cut, each for itself: around calls and inside of results that are text."""
    edges: list[int] = [0]
    if role == "assistant":
        for call in calls_in(text):
            edges += call.span
    elif role == "user":
        for result in results_in(text):
            edges += (result.span[0], *result.inside, result.span[1])
    edges.append(len(text))
    return list(zip(edges[::2], edges[1::2], strict=True))


def _texts(message: Message) -> list[str]:
    role = message.get("role")
    return [text[start:end] for _, text in texts_of(message) for start, end in _pieces(role, text)]


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """The message with other texts: its content, or those of the parts of its content."""
    content, role = message.get("content"), message.get("role")
    if isinstance(content, str):
        return {**message, "content": _changed(role, content, change)}
    if isinstance(content, list):
        return {**message, "content": [_with_text(role, part, change) for part in content]}
    return message


def _with_text(role: Any, part: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _changed(role, part["text"], change)}


def _changed(role: Any, text: str, change: Callable[[str], str]) -> str:
    done: list[str] = []
    after = 0
    for start, end in _pieces(role, text):
        done += (text[after:start], change(text[start:end]))
        after = end
    return "".join(done)
