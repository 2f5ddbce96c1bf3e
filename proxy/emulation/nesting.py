"""Where a JSON value in a text ends, followed as the text comes: what stands inside of it is part of it, and no call."""

from __future__ import annotations

import re

_PLAIN = {quote: re.compile(rf"(?:[^{quote}\\\n]++|\\.)*+", re.DOTALL) for quote in "\"'"}
"""What a string holds up to its end, or to a line end."""
_WORD = re.compile(r"[\w.+-]+")
_SPACE = re.compile(r"\s+")
_OPENED_BY = {"}": "{", "]": "["}
_STOPS = "`<"
"""What stands outside of strings in no JSON, and begins the end of fences and tags."""


class Nesting:
    """Follows one object or array. It is over where its last bracket closes, or where the text is no JSON any longer.

    So a bracket that is only a part of a sentence does not hide the rest of the answer. Missing quotes around names,
    single quotes and commas that are too many are overlooked. If `lenient`, for what is known to be meant as JSON, every
    mistake is: a closing bracket also closes what was left open inside of its own, one that fits nothing is passed over, and
    only a backtick or an angle bracket ends it early. Linear in the text, however it is cut.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._open: list[str] = []
        self._counts = {"{": 0, "[": 0}
        """How many of each are open."""
        self._last = ":"
        """What came last: a mark, or the `k` of a key or the `v` of a value. Before the text a value is wanted."""
        self._quote = ""
        """Of the string that the text is in."""
        self._escaped = False
        self._in_word = False
        """Whether a number or a bare word may still go on."""
        self.over = False
        self.closed = False
        """Whether it came to its end."""

    def take(self, text: str, start: int = 0) -> int:
        """How many characters of the next text belong to the value: all of them as long as it is not over."""
        at = start
        while at < len(text) and not self.over:
            at = self._string(text, at) if self._quote else self._outside(text, at)
        return at - start

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _PLAIN[self._quote].match(text, at)
        at = match.end() if match is not None else at
        if at == len(text):
            return at
        if text[at] == "\n" and not self._lenient:
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
        if not fits and (not self._lenient or text[at] in _STOPS):
            self.over = True
            return at
        return word.end() if word else at + 1

    def _begins(self) -> bool:
        """Take in the beginning of a name or of a value; whether one is wanted."""
        wanted = self._last in "{[,:"
        named = self._last in "{," and self._open[-1] == "{"
        self._last = "k" if named else "v"
        return wanted

    def _mark(self, character: str) -> bool:
        """Take in a quote, a bracket, a colon or a comma; whether it fits there."""
        if character in _PLAIN:
            fits = self._begins()
            # Where no value may begin a single quote is an apostrophe.
            self._quote = character if fits or character == '"' else ""
            return fits
        if character in _OPENED_BY:
            return self._close(_OPENED_BY[character])
        last, self._last = self._last, character
        if character in self._counts:
            fits = last in "[:" or (last == "," and self._open[-1] == "[")
            self._open.append(character)
            self._counts[character] += 1
            return fits
        return last == {":": "k", ",": "v"}.get(character)

    def _close(self, opened: str) -> bool:
        if not (self._counts[opened] if self._lenient else self._open and self._open[-1] == opened):
            return False
        bracket = ""
        while bracket != opened:
            bracket = self._open.pop()
            self._counts[bracket] -= 1
        self._last = "v"
        self.closed = self.over = not self._open
        return True
