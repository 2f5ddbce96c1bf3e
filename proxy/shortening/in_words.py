"""A compacted history in words, for clients and servers that can't read it otherwise; and words of that kind from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.history.marks import CLOSE, OPEN, is_summary
from proxy.neutral.request import Message
from proxy.shortening.extract import told_by_code
from proxy.shortening.summary import block

_SHORT = 6_000
"""Characters in which is told what is no summary yet."""
_LONGEST_FOREIGN = 400_000
"""Characters of a summary from elsewhere that are taken."""


def in_words(history: Sequence[Message]) -> str:
    """What a history says: its summary, and what came after that, by code."""
    blocks = [
        message["content"].replace(OPEN, "").replace(CLOSE, "") for message in history if is_summary(message)
    ]
    rest = told_by_code([message for message in history if not is_summary(message)], limit=_SHORT)
    return "\n\n".join(filter(None, (*(each.strip() for each in blocks), rest))) or "Nothing was said yet."


def foreign(words: str) -> list[Message]:
    """A summary that somebody else wrote, in place of the messages it stands for: as background, with no rules in it."""
    return [{"role": "user", "content": block(words[:_LONGEST_FOREIGN], (), limit=0)}]
