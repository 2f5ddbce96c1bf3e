"""Text that may not be complete yet, read by plain functions: they raise `More` where they can't tell without more of it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

SPACE = re.compile(r"\s*+")
LONGEST_WORD = 256
"""Letters of the longest name that is read."""


class More(Exception):
    """The text ends where it may still become several things."""


class MoreThanSpace(More):
    """White space that follows will not tell which."""


class Words:
    """A set of words that is asked how far a text may still become one of them.

    Words that are too long to be read are left out. Memory is that of the words alone.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(word for word in words if len(word) <= LONGEST_WORD)
        self._sorted = sorted(self._words)

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def begun(self, text: str) -> str:
        """The longest beginning of a text that a word begins with, too."""
        # The words that have most in common with it are its neighbours in this order.
        at = bisect_left(self._sorted, text)
        return max(
            (_common(word, text) for word in self._sorted[max(at - 1, 0) : at + 1]), key=len, default=""
        )


def _common(one: str, other: str) -> str:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:at]
    return one[: len(other)]


class Cursor:
    """A place in a text. Where it has `ended`, nothing raises."""

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.text = text
        self.at = 0
        self.ended = ended

    @property
    def rest(self) -> str:
        """What was not consumed."""
        return self.text[self.at :]

    def push(self, text: str) -> None:
        """Add what comes next."""
        self.text = self.rest + text if self.at < len(self.text) else text
        self.at = 0

    def unread(self, text: str) -> None:
        """Put back what was consumed last."""
        if self.at >= len(text):
            self.at -= len(text)
        else:
            # Its beginning came with an earlier piece.
            self.text, self.at = text + self.rest, 0

    def peek(self) -> str:
        """The next character, which stays; empty at the end."""
        if self.at == len(self.text) and not self.ended:
            raise More
        return self.text[self.at : self.at + 1]

    def take(self, most: int) -> str:
        """Consume and return what is there already, up to so many characters."""
        start, self.at = self.at, min(self.at + most, len(self.text))
        return self.text[start : self.at]

    def now(self, pattern: re.Pattern[str]) -> str:
        """Consume and return what matches in the text that is there already; maybe nothing."""
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def whole(self, pattern: re.Pattern[str]) -> str:
        """Consume and return a run of characters, maybe none, that is known to go no further."""
        found = self.now(pattern)
        if self.at == len(self.text) and not self.ended:
            raise MoreThanSpace if pattern.fullmatch("\n") else More
        return found

    def run(self, pattern: re.Pattern[str] = SPACE) -> str:
        """Consume a run of characters, and return the character after it."""
        self.whole(pattern)
        return self.text[self.at : self.at + 1]

    def literal(self, wanted: str) -> bool:
        """Consume a text if it is there."""
        there = self.text[self.at : self.at + len(wanted)]
        if not self.ended and len(there) < len(wanted) and wanted.startswith(there):
            raise More
        self.at += len(wanted) if there == wanted else 0
        return there == wanted

    def word(self, words: Words) -> str:
        """Consume as much as may be the beginning of a word."""
        begun = words.begun(self.text[self.at : self.at + LONGEST_WORD])
        if self.at + len(begun) == len(self.text) and not self.ended:
            raise More
        self.at += len(begun)
        return begun
