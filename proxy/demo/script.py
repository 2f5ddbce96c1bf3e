"""Which text answers which conversation, and where a partial answer goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from proxy.demo import texts
from proxy.neutral.request import Message, text_of

LOST = " (The demo model cannot find its place in this text and stops here.)"

_COUNT = re.compile(r"\bcount\b.{0,40}?\bto\s+(\d[\d,. ]*)", re.IGNORECASE)
_STORY = re.compile(r"\b(?:story|tale|novel|long (?:text|answer|essay|report|poem))\b", re.IGNORECASE)
_GO_ON = re.compile(
    r"^\W*(?:please\s+)?(?:continue|go on|carry on|keep going)\b|\bcontinue exactly\b", re.IGNORECASE
)
_SUMMARISE = re.compile(
    r"(?:^|[.!?:]\s+|\n)(?:please\s+|now\s+)?(?:summari[sz]e\b|(?:write|give|make)\b[^.\n]{0,40}\bsummary\b)",
    re.IGNORECASE,
)
_CHORES = (
    (re.compile(r"^### Task:.*\"title\"", re.DOTALL), '{"title": "Spillway demo"}'),
    (re.compile(r"^### Task:.*\"tags\"", re.DOTALL), '{"tags": ["demo"]}'),
    (re.compile(r"^### Task:.*\"follow_ups\"", re.DOTALL), '{"follow_ups": ["Count to 3000"]}'),
)
"""Open WebUI's background requests (0.12) and answers in the form it expects."""
_TAILS = (400, 160, 80)
"""Characters of a partial answer's end that are looked for in the whole text, longest first."""


def reply(messages: Sequence[Message], *, used: int, window: int) -> str:
    """What the model says next: a whole answer, or the rest of the one that stands at the end.

    Args:
        messages: the conversation; a trailing assistant message is a partial answer to go on with.
        used: tokens of the prompt.
        window: tokens of the context window.
    """
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        return _rest(text_of(last), _requests(messages), used, window)
    asked = text_of(last)
    if _GO_ON.search(asked) and (said := _said_before(messages)):
        return _rest(said, _requests(messages[:-1]), used, window) or "That was all of it."
    if chore := next((answer for pattern, answer in _CHORES if pattern.search(asked)), None):
        return chore
    if _SUMMARISE.search(asked):
        return summary(messages)
    return _whole(asked, used, window)


def summary(messages: Sequence[Message]) -> str:
    """The beginnings of what was said, in a fixed order: no understanding, but always the same.

    A single message is taken for a transcript that ends with the instruction.
    """
    if len(messages) == 1:
        lines = [line for line in re.split(r"[\r\n]+", text_of(messages[0])) if line.strip(" <>")][:-1]
        lines = [line for line in lines if not line.startswith("<<<")]
        return "\n".join(["The conversation in short:", *(f"- {_clip(line)}" for line in _spread(lines, 8))])
    asked = [text_of(m) for m in messages[:-1] if m.get("role") == "user"]
    said = [text_of(m) for m in messages[:-1] if m.get("role") in ("assistant", "tool")]
    parts = [f"Goal: {_clip(asked[0])}" if asked else "Goal: none was stated."]
    parts += [f"The user said: {_clip(text)}" for text in _spread(asked[1:], 4)]
    parts += [f"The answer began: {_clip(text)}" for text in _spread(said, 3)]
    if said:
        parts.append(f"The last answer ended: {_clip(said[-1][-100:])}")
    return "\n".join(parts)


def _whole(asked: str, used: int, window: int) -> str:
    if found := _COUNT.search(asked):
        digits = re.sub(r"\D", "", found[1])[:9]
        return texts.count(int(digits))
    if _STORY.search(asked):
        return texts.story()
    return texts.short(asked, used=used, window=window)


def _rest(said: str, requests: Iterator[str], used: int, window: int) -> str:
    """What follows `said` in the answer to one of the requests, newest first."""
    for asked in requests:
        whole = _whole(asked, used, window)
        if (at := _place(whole, said)) is not None:
            return whole[at:]
    return LOST


def _place(whole: str, said: str) -> int | None:
    """Where a text goes on that has been said up to and including the end of `said`."""
    if whole.startswith(said):
        return len(said)
    for size in _TAILS:
        tail = said[-size:]
        if len(tail) == size and whole.count(tail) == 1:
            return whole.index(tail) + size
    return None


def _requests(messages: Sequence[Message]) -> Iterator[str]:
    return (text_of(message) for message in reversed(messages) if message.get("role") == "user")


def _said_before(messages: Sequence[Message]) -> str:
    before = next((m for m in reversed(messages[:-1]) if m.get("role") == "assistant"), None)
    return text_of(before) if before else ""


def _spread(items: Sequence[str], most: int) -> Sequence[str]:
    """At most so many items, evenly taken from first to last."""
    if len(items) <= most:
        return items
    return [items[at * (len(items) - 1) // (most - 1)] for at in range(most)]


def _clip(text: str) -> str:
    """The beginning of a text in one line, without a mark in brackets before it."""
    flat = " ".join(re.sub(r"^\s*\[[^\]]*\]", "", text).split())
    return flat if len(flat) <= 100 else flat[:100].rsplit(" ", 1)[0] + " …"
