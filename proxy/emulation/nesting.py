"""Where a JSON value in a text ends, followed as the text comes: what stands inside of it is part of it, and no call."""

from __future__ import annotations

import re
from enum import Enum, auto

_PLAIN = {'"': re.compile(r'[^"\\\n]*'), "'": re.compile(r"[^'\\\n]*")}
_WORD = re.compile(r"[\w.+-]+")
_SPACE = re.compile(r"\s+")
_CLOSING = {"{": "}", "[": "]"}


class _Wanted(Enum):
    """What may come next inside of the innermost bracket."""

    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


_FIRST = {"{": _Wanted.KEY, "[": _Wanted.VALUE}
"""What a bracket begins with."""
_THEN = {_Wanted.KEY: _Wanted.COLON, _Wanted.VALUE: _Wanted.COMMA}
"""What comes behind a name, and behind a value."""


class Nesting:
    """Follows one object or array. It is over where its last bracket closes, or where the text is no JSON any longer.

    So a bracket that is only a part of a sentence does not hide the rest of the answer. Missing quotes around names,
    single quotes and commas that are too many are overlooked. Linear in the text, however it is cut.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._wanted = _Wanted.VALUE
        self._quote = ""
        """Of the string that the text is in."""
        self._escaped = False
        self._in_word = False
        """Whether a number or a bare word may still go on."""
        self.over = False

    def take(self, text: str) -> int:
        """How many characters of the next text belong to the value: all of them as long as it is not over."""
        at = 0
        while at < len(text) and not self.over:
            at = self._string(text, at) if self._quote else self._outside(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _PLAIN[self._quote].match(text, at)
        at = match.end() if match is not None else at
        if at == len(text):
            return at
        if text[at] == "\n":
            # Rather a quote that was forgotten than a line end that was not escaped.
            self.over = True
            return at
        self._escaped = text[at] == "\\"
        if text[at] == self._quote:
            self._quote = ""
        return at + 1

    def _outside(self, text: str, at: int) -> int:
        if space := _SPACE.match(text, at):
            self._in_word = False
            return space.end()
        word = _WORD.match(text, at)
        fits = (self._in_word or self._begins()) if word else self._mark(text[at])
        self._in_word = word is not None
        if not fits:
            self.over = True
            return at
        return word.end() if word else at + 1

    def _begins(self) -> bool:
        """Take in the beginning of a name or of a value; whether one is wanted."""
        if self._wanted not in _THEN:
            return False
        self._wanted = _THEN[self._wanted]
        return True

    def _mark(self, character: str) -> bool:
        """Take in a quote, a bracket, a colon or a comma; whether it fits there."""
        if character in _PLAIN:
            self._quote = character
            return self._begins()
        if character in _CLOSING and self._wanted is _Wanted.VALUE:
            self._open.append(character)
            self._wanted = _FIRST[character]
        elif self._open and character == _CLOSING[self._open[-1]]:
            self._open.pop()
            self._wanted, self.over = _Wanted.COMMA, not self._open
        elif character == ":" and self._wanted is _Wanted.COLON:
            self._wanted = _Wanted.VALUE
        elif character == "," and self._wanted is _Wanted.COMMA:
            self._wanted = _FIRST[self._open[-1]]
        else:
            return False
        return True
