"""JSON as models write it: parsed with the mistakes that have one meaning, each named.

Linear in the length of the text; nesting is bounded, so that nothing recurses far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from proxy.emulation.cursor import Cursor

DEEPEST = 64
"""Levels of nesting that are read."""
TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
CUT = "cut"
"""The reason of what ends in the middle of a string, where a value is missing, or where a number or a word may go on."""

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z]*")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""JSON's and Python's."""
_LAST = re.compile(r"[\w.+-]+\s*\Z")
"""A number or a word that nothing follows."""
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*+')
"""An escape of JSON's, or all that follow each other: two may be halves of one character."""
_SHOWN = 30


NOT_JSON = "not_json"
UNKNOWN_TOOL = "unknown_tool"
WRONG_ARGUMENTS = "wrong_arguments"
"""With `CUT` the kinds of calls that can't be made."""


class Unreadable(ValueError):
    """Not JSON, and not known how it was meant; says why in words for the model."""

    def __init__(self, why: str, kind: str = NOT_JSON, *, tool: str = "") -> None:
        """`tool`: which one was called, as it was written."""
        super().__init__(why)
        self.kind = CUT if why == CUT else kind
        self.tool = tool


def parse(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value, and the names of the repairs in the order in which they were needed.

    Repairs: `bad_escapes`, `missing_brackets` (at the end), `python_literals`, `raw_newlines` (any control character in
    a string), `single_quotes`, `trailing_commas`.

    Raises:
        Unreadable: with `cut` as its text if the end is missing.
    """
    parser = _Parser(text)
    value = parser.value(0)
    if parser.run():
        raise parser.wrong("nothing after the end")
    return value, tuple(parser.repairs)


class _Parser(Cursor):
    def __init__(self, text: str) -> None:
        super().__init__(text, ended=True)
        self.repairs: dict[str, None] = {}

    def wrong(self, wanted: str) -> Unreadable:
        near = self.text[self.at : self.at + _SHOWN]
        return Unreadable(f"it is not valid JSON: {wanted} was expected at {near!r}" if near else CUT)

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise Unreadable(TOO_DEEP)
        begins = self.run()
        if begins == "{":
            return {self._key(): self.value(depth + 1) for _ in self._members("}", depth)}
        if begins == "[":
            return [self.value(depth + 1) for _ in self._members("]", depth)]
        if begins in _PLAIN:
            return self._string()
        if depth and _LAST.match(self.text, self.at):
            raise Unreadable(CUT)
        return self._scalar()

    def _members(self, bracket: str, depth: int) -> Iterator[None]:
        """Stop before each member, up to the end, which may be missing at the end of the text or before an outer bracket."""
        self.at += 1
        first, comma = True, False
        while (following := self.run()) not in ("", bracket) and not (following in "}]" and depth > 0):
            if not (first or comma):
                raise self.wrong(f'"," or "{bracket}"')
            yield
            first, comma = False, self.run() == ","
            self.at += comma
        if following == bracket:
            self.at += 1
        else:
            self.repairs["missing_brackets"] = None
        if comma:
            self.repairs["trailing_commas"] = None

    def _key(self) -> str:
        if self.run() not in _PLAIN:
            raise self.wrong("a name in double quotes")
        key = self._string()
        if self.run() != ":":
            raise self.wrong('":"')
        self.at += 1
        return key

    def _scalar(self) -> Any:
        if number := self.now(_NUMBER):
            try:
                return json.loads(number)
            except ValueError:  # Python refuses integers of thousands of digits
                raise Unreadable("a number in it has too many digits") from None
        word = self.now(_WORD)
        if word not in _LITERALS:
            self.at -= len(word)
            raise self.wrong("a value")
        if word.istitle():
            self.repairs["python_literals"] = None
        return _LITERALS[word]

    def _string(self) -> str:
        quote = self.take(1)
        if quote == "'":
            self.repairs["single_quotes"] = None
        pieces: list[str] = []
        while True:
            pieces.append(self.now(_PLAIN[quote]))
            character = self.take(1)
            if not character:
                raise Unreadable(CUT)
            if character == quote:
                return "".join(pieces)
            if character == "\\":
                pieces.append(self._escaped())
            else:
                self.repairs["raw_newlines"] = None
                pieces.append(character)

    def _escaped(self) -> str:
        if escape := self.now(_ESCAPE):
            return str(json.loads(f'"\\{escape}"'))
        if self.literal("'"):
            return "'"
        self.repairs["bad_escapes"] = None
        return "\\"
