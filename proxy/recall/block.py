"""Format of recalled passages in a prompt: in front of the user's own words, between marks that nothing in them can forge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from proxy.core.history.marks import RECALLED, RECALLED_END, defanged
from proxy.core.request import Message
from proxy.recall.choosing import Passage

_OMISSION = "[…]"
_SPEAKER = re.compile(
    r"(?:^|(?<=[\r\v\f\x1c-\x1e\x85\u2028\u2029]))"
    r"(?=(?:[^\S\n]|[*_#>\u200b\ufeff]){0,8}(?:user|assistant|tool|function|system|developer)\b[^\n:\uff1a]{0,80}[:\uff1a])",
    re.MULTILINE | re.IGNORECASE,
)
"""Where a line of a passage, whatever ends the line before it, reads as if another spoke from there on."""


def block_of(messages: Sequence[Message], passages: Sequence[Passage]) -> str:
    """The block for these passages of these messages, in the order of the conversation.

    Each message is named by who said it and, where the history tells, by its day.
    """
    return "\n".join((RECALLED, *_lines(messages, passages), RECALLED_END))


def found_text(messages: Sequence[Message], passages: Sequence[Passage]) -> str:
    """The same passages as what a search has found."""
    return "\n".join(_lines(messages, passages))


def with_block(message: Message, block: str) -> Message:
    """A user message with a block in front of the user's words, which stay as they are."""
    content: Any = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": block}, *content]}
    return {**message, "content": f"{block}\n\n{content or ''}"}


def _lines(messages: Sequence[Message], passages: Sequence[Passage]) -> Iterator[str]:
    in_order = sorted(passages, key=lambda passage: (passage.index, passage.start))
    day = None
    for index, parts in groupby(in_order, key=lambda passage: passage.index):
        pieces = list(parts)
        if pieces[0].day is not None and pieces[0].day != day:
            day = pieces[0].day
            yield f"({day.isoformat()})"
        yield f"{_speaker(messages[index])}: {_joined(pieces)}"


def _speaker(message: Message) -> str:
    name = message.get("name")
    role = message.get("role")
    return f"{role} {defanged(name)}" if isinstance(name, str) and name.isprintable() else f"{role}"


def _joined(pieces: Sequence[Passage]) -> str:
    """Join the recalled passages of one message; a gap of more than white space between two is marked as omitted."""
    text = pieces[0].text
    for before, after in pairwise(pieces):
        gap = "\n" if after.start - before.end <= 2 else f" {_OMISSION} "
        text += gap + after.text
    return _SPEAKER.sub("> ", defanged(text))
