"""JSON as models write it: parsed with the mistakes that have one meaning, each named.

Linear in the length of the text; nesting is bounded, so that nothing recurses far.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 64
"""Levels of nesting that are read."""
TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
CUT = "cut"
"""The reason of what ends in the middle of a string, where a value is missing, or where a number or a word may go on."""

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z]+")
_LITERALS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}
_LAST = re.compile(r"[\w.+-]+\s*\Z")
"""A number or a word that nothing follows."""
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*+')
"""An escape of JSON's, or all that follow each other: two may be halves of one character."""
_SHOWN = 30


class Unreadable(ValueError):
    """Not JSON, and not known how it was meant; says why in words for the model."""


def parse(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value, and the names of the repairs in the order in which they were needed.

    Repairs: `bad_escapes`, `missing_brackets` (at the end), `python_literals`, `raw_newlines` (any control character in
    a string), `single_quotes`, `trailing_commas`.

    Raises:
        Unreadable: with `cut` as its text if the end is missing.
    """
    parser = _Parser(text)
    value = parser.value(0)
    if parser.following():
        raise parser.wrong("nothing after the end")
    return value, tuple(parser.repairs)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.repairs: dict[str, None] = {}

    def following(self) -> str:
        """The next character that is no white space; empty at the end."""
        self._run(_SPACE)
        return self._text[self._at : self._at + 1]

    def _run(self, pattern: re.Pattern[str]) -> str:
        """Consume what matches; maybe nothing."""
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match.group() if match is not None else ""

    def wrong(self, wanted: str) -> Unreadable:
        near = self._text[self._at : self._at + _SHOWN]
        return Unreadable(f"it is not valid JSON: {wanted} was expected at {near!r}" if near else CUT)

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise Unreadable(TOO_DEEP)
        begins = self.following()
        if begins == "{":
            return self._object(depth)
        if begins == "[":
            return self._array(depth)
        if begins in _PLAIN:
            return self._string()
        if depth and _LAST.match(self._text, self._at):
            raise Unreadable(CUT)
        return self._scalar()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        while not self._closes("}", depth, first=not found):
            if self.following() not in _PLAIN:
                raise self.wrong("a name in double quotes")
            key = self._string()
            if self.following() != ":":
                raise self.wrong('":"')
            self._at += 1
            found[key] = self.value(depth + 1)
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._at += 1
        while not self._closes("]", depth, first=not found):
            found.append(self.value(depth + 1))
        return found

    def _closes(self, bracket: str, depth: int, *, first: bool) -> bool:
        """Consume a comma, or the end, which may be missing at the end of the text or before an outer bracket."""
        following = self.following()
        comma = following == "," and not first
        if comma:
            self._at += 1
            following = self.following()
        if following == bracket:
            self._at += 1
        elif not following or (following in "}]" and depth > 0):
            self.repairs["missing_brackets"] = None
        elif comma or first:
            return False
        else:
            raise self.wrong(f'"," or "{bracket}"')
        if comma:
            self.repairs["trailing_commas"] = None
        return True

    def _scalar(self) -> Any:
        if number := self._run(_NUMBER):
            try:
                return json.loads(number)
            except ValueError:  # Python refuses integers of thousands of digits
                raise Unreadable("a number in it has too many digits") from None
        word = _WORD.match(self._text, self._at)
        name = word.group() if word is not None else ""
        if name in _PYTHON:
            self.repairs["python_literals"] = None
        elif name not in _LITERALS:
            raise self.wrong("a value")
        self._at += len(name)
        return _PYTHON.get(name, _LITERALS.get(name))

    def _string(self) -> str:
        quote = self._text[self._at]
        if quote == "'":
            self.repairs["single_quotes"] = None
        self._at += 1
        pieces: list[str] = []
        while True:
            pieces.append(self._run(_PLAIN[quote]))
            character = self._text[self._at : self._at + 1]
            if not character:
                raise Unreadable(CUT)
            self._at += 1
            if character == quote:
                return "".join(pieces)
            if character == "\\":
                pieces.append(self._escaped())
            else:
                self.repairs["raw_newlines"] = None
                pieces.append(character)

    def _escaped(self) -> str:
        if match := _ESCAPE.match(self._text, self._at):
            self._at = match.end()
            return str(json.loads(f'"\\{match.group()}"'))
        if self._text.startswith("'", self._at):
            self._at += 1
            return "'"
        self.repairs["bad_escapes"] = None
        return "\\"
