"""Paths, URLs, numbers and names taken from a text by code, because summaries by a model lose them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# One after the other at each place of a text: of a path its file name is no identifier of its own. Every
# repetition is bounded, so that no text takes longer than a constant for each of its characters.
_PATTERN = re.compile(
    r"https?://[^\s<>\"'`)\]}]{4,200}"
    r"|(?<![\w/])(?:~|\.{1,2})?(?:/[\w.@+-]{1,80}){2,12}"
    r"|(?<![\w./-])[\w-]{1,60}(?:/[\w.-]{1,60}){1,12}\.\w{1,8}\b"
    r"|(?<![\w-])[\w-]{1,60}\.(?:py|js|ts|tsx|go|rs|java|c|h|cpp|md|toml|yaml|yml|json|sql|sh|txt|csv)\b"
    r"|(?<![\w-])(?=[A-Za-z_-]{0,40}\d)(?=[\d_-]{0,40}[A-Za-z])[A-Za-z\d][\w-]{4,60}\b"
    r"|\b\d[\d.,:]{3,20}\d\b"
)
_LONGEST_TEXT = 200_000


def identifiers(texts: Iterable[str], *, limit: int) -> list[str]:
    """The newest distinct identifiers in the order of their appearance, at most `limit` characters together."""
    found: dict[str, None] = {}
    for text in texts:
        for name in found_in(text):
            found.pop(name, None)
            found[name] = None
    return newest_within(found, limit=limit)


def found_in(text: str) -> Iterator[str]:
    """The identifiers of a text, in order, with repetitions."""
    return (match.group().rstrip(".,:;") for match in _PATTERN.finditer(text[:_LONGEST_TEXT]))


def newest_within(found: Iterable[str], *, limit: int) -> list[str]:
    """The last of these that take at most `limit` characters together, separators counted, in their order."""
    chosen: list[str] = []
    room = limit
    for name in reversed(list(found)):
        if len(name) + 2 <= room:
            room -= len(name) + 2
            chosen.append(name)
    return chosen[::-1]
