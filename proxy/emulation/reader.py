"""Characters that arrive in pieces, read by generators that pause wherever the text has not come yet.

A reader sees characters, never pieces, so that how the text was cut can't change what is read. Everything that is
consumed after `mark` is kept until the next `mark`: it may turn out to be ordinary text after all.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")
Step: TypeAlias = Generator[None, None, _T]
"""A reading that yields when it needs more text, and returns what it read."""

SPACE = re.compile(r"\s*")


class Reader:
    """The text that has come and is not consumed yet. Linear in the length of the text, however it is cut."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._from = 0
        """Where in the current piece the marked text goes on."""
        self._pieces: list[str] = []
        """Marked text of earlier pieces."""
        self._before = 0
        """Characters of those."""
        self._marked = False
        self.ended = False
        """Whether no more text will come."""

    def push(self, text: str) -> None:
        """Hand in the next piece; everything before it must have been consumed."""
        self._keep()
        self._text = text
        self._at = self._from = 0

    def _keep(self) -> None:
        if self._marked:
            self._pieces.append(self._text[self._from : self._at])
            self._before += self._at - self._from

    def mark(self) -> None:
        """Begin to keep what is consumed from here on."""
        self._pieces, self._before, self._from, self._marked = [], 0, self._at, True

    def release(self) -> str:
        """What was consumed since the mark; it is not kept any longer."""
        text = self.kept
        self._pieces, self._before, self._marked = [], 0, False
        return text

    def unread(self, text: str) -> None:
        """Put back text that was consumed last: it is read again. Nothing is marked then."""
        if self._at >= len(text):
            self._at -= len(text)
        else:
            # Its beginning came with an earlier piece.
            self._text = text + self._text[self._at :]
            self._at = 0
        self._pieces, self._before, self._marked = [], 0, False

    @property
    def kept(self) -> str:
        """What was consumed since the mark; empty if nothing is marked."""
        if not self._marked:
            return ""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return "".join((*self._pieces, self._text[self._from : self._at]))

    @property
    def size(self) -> int:
        """Characters that are kept."""
        return self.offset if self._marked else 0

    @property
    def offset(self) -> int:
        """Characters consumed since the mark."""
        return self._before + self._at - self._from

    def peek(self) -> Step[str]:
        """The next character, which stays; empty at the end of the text."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip(self) -> None:
        """Consume the character that was peeked at."""
        self._at += 1

    def run(self, pattern: re.Pattern[str]) -> Step[str]:
        """Consume the longest run of a class of characters (`[…]*`), and return the character after it."""
        while True:
            match = pattern.match(self._text, self._at)
            self._at = match.end() if match is not None else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not (yield from self.peek()):
                return ""

    def now(self, pattern: re.Pattern[str]) -> str:
        """Consume and return what matches in the text that is there already; maybe nothing."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def literal(self, text: str) -> Step[bool]:
        """Consume a text as far as it is there; whether all of it was."""
        for character in text:
            if (yield from self.peek()) != character:
                return False
            self.skip()
        return True
