"""The arguments of a call in Python: where they end, followed as the text comes, and what they say. Nothing is ever run."""

from __future__ import annotations

import ast
import math
import re
import warnings
from typing import Any

from proxy.wire.jsontext import dumps

_LONGEST = 65_536
"""Characters of the arguments of one call that are read: Python's parser takes some 20 ms for them."""
_DEEPEST = 64
_STRING = {quote: re.compile(rf"(?:[^{quote}\\]++|\\.)*+", re.DOTALL) for quote in "\"'"}
_CODE = re.compile(r"""[^"'()\[\]{}]*+""")
_OPENED_BY = {")": "(", "]": "[", "}": "{"}
_LITERALS = re.compile(
    r"""(?:[\s,:=()\[\]{}]++|[^\W\d]\w*+(?!["'])|[-+]?(?:\d|\.\d)[\w.]*+(?:(?<=[eE])[-+]\d++)?+"""
    r"""|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')*+""",
    re.DOTALL,
)
"""What literals and names are made of: without operators, attributes and formatted strings, nothing nests but brackets, of which
there are few. So Python's parser, which deep nesting can bring down (`ast`, "literal_eval"), is safe from what a model writes."""
_NAMED = {"true": True, "false": False, "null": None}
"""JSON's words, which models mix in."""


class Parentheses:
    """Follows Python from an opening parenthesis to the one that closes it. Linear in the text, however it is cut.

    It is over early, and not closed, where brackets don't match, nest too deeply, or go on for too long.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        """Of the string that the text is in."""
        self._escaped = False
        self._size = 0
        self.over = False
        self.closed = False

    def take(self, text: str, start: int = 0) -> int:
        """How many characters of the next text belong to it."""
        at = start
        while at < len(text) and not self.over:
            at = self._string(text, at) if self._quote else self._code(text, at)
        self._size += at - start
        self.over |= self._size > _LONGEST
        return at - start

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _STRING[self._quote].match(text, at)
        at = match.end() if match is not None else at
        if at == len(text):
            return at
        self._escaped = text[at] == "\\"
        if not self._escaped:
            self._quote = ""
        return at + 1

    def _code(self, text: str, at: int) -> int:
        match = _CODE.match(text, at)
        at = match.end() if match is not None else at
        if at == len(text):
            return at
        character = text[at]
        if character in _STRING:
            self._quote = character
        elif character not in _OPENED_BY:
            self._open.append(character)
            self.over = len(self._open) > _DEEPEST
        elif self._open.pop() != _OPENED_BY[character]:
            self.over = True
            return at
        else:
            self.over = self.closed = not self._open
        return at + 1


def arguments_of(text: str) -> str | None:
    """The arguments between parentheses, as JSON; None if they have no names, or are no literals."""
    if len(text) > _LONGEST or not _LITERALS.fullmatch(text):
        return None
    try:
        with warnings.catch_warnings():
            # Of escapes that are none, in what a model wrote.
            warnings.simplefilter("ignore")
            call = ast.parse(f"_{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        return dumps({str(each.arg): _value(each.value) for each in call.keywords}).decode()
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr) -> Any:
    """What a literal stands for.

    Raises:
        ValueError: it is none, or none that JSON knows.
    """
    match node:
        case ast.Constant(value=str() | int() | None as value):
            found: Any = value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            found = value
        case ast.Name(id=name) if name in _NAMED:
            found = _NAMED[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            found = [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            found = {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)
        ):
            found = value if isinstance(sign, ast.UAdd) else -value
        case _:
            raise ValueError(type(node).__name__)
    return found


def _key(node: ast.expr | None) -> str:
    key = None if node is None else _value(node)
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise ValueError(type(node).__name__)
