"""Ends and values of the JSON and Python that models write: followed as it streams, parsed once it is complete, repaired if need be.

`json_repair` guesses, so it is only asked once the brackets are closed, or nothing but brackets is missing: it never completes
a call that was cut off. Its results count only where they fit the schema of the tool.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Sequence
from typing import Any

from typing_extensions import override

CUT = "cut"
NOT_JSON = "not_json"
UNKNOWN_TOOL = "unknown_tool"
WRONG_ARGUMENTS = "wrong_arguments"
"""With `CUT` the kinds of calls that can't be made; `CUT` is the reason as well of what ends before its value does."""
_INVALID = "it is not valid JSON"
_DEEPEST = 64
_TOO_DEEP = f"it is nested deeper than {_DEEPEST} levels"
_LONGEST = 32_768
"""Characters that are repaired: `json_repair` takes 1.5 µs for each, and must not hold up the loop."""
_LONGEST_PYTHON = 65_536
"""Characters that are parsed as Python, which takes some 20 ms for them."""
_PLAIN = {quote: re.compile(rf"(?:[^{quote}\\\n]++|\\.)*+", re.DOTALL) for quote in "\"'"}
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[\w.+-]+")
_OPENED_BY = {"}": "{", "]": "[", ")": "("}
_LITERALS = re.compile(
    r"""(?:[\s,:=()\[\]{}]++|[^\W\d]\w*+(?!["'])|[-+]?(?:\d|\.\d)[\w.]*+(?:(?<=[eE])[-+]\d++)?+"""
    r"""|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')*+""",
    re.DOTALL,
)
"""Literals and names without operators, attributes and formatted strings: nothing nests but brackets, of which there are few, so
that Python's parser can't be brought down by what a model writes (the warning at `ast.literal_eval`)."""
_DECODER = json.JSONDecoder()
_JSON_WORDS = {"true": True, "false": False, "null": None}


class Unreadable(ValueError):
    """A call that can't be made; says why in words for the model, and may quote it."""

    def __init__(self, why: str, kind: str = NOT_JSON, *, tool: str = "") -> None:
        """`tool`: its name as it was written."""
        super().__init__(why)
        self.kind = CUT if why == CUT else kind
        self.tool = tool


class Brackets:
    """Follows one bracketed value to the bracket that closes it, past strings. Linear in the text, however it is cut.

    Mistakes are passed over, except for a backtick or an angle bracket outside of strings, with which fences and tags end.
    `strict`: the value ends where the text is no JSON any longer, so that a bracket in a sentence does not hide the rest of the answer;
    missing quotes around names, single quotes, and commas too many are still allowed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._open: list[str] = []
        self._last = ":"
        """The newest mark, or `k` for a key, `v` for a value with an end of its own, `w` for a word or number."""
        self._quote = ""
        self._escaped = self._in_word = False
        self.over = self.closed = self.deep = False

    @property
    def complete(self) -> bool:
        """Return whether nothing but closing brackets can be missing."""
        return self.closed or (bool(self._open) and not self._quote and self._last == "v")

    def take(self, text: str, at: int = 0) -> int:
        """Follow the next text from an index; the index behind what belongs to the value."""
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
        if text[at] == "\n" and self._strict:
            self.over = True  # a forgotten quote is likelier than a line end without its escape
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
        fits = (self._in_word or self._value("w")) if word else self._mark(text[at])
        self._in_word = word is not None
        if not fits and (self._strict or text[at] in "`<"):
            self.over = True
            return at
        return word.end() if word else at + 1

    def _value(self, kind: str) -> bool:
        """Take in the beginning of a key or a value; whether one may stand here."""
        fits = self._last in "{[(,:="
        key = self._last in "{," and self._open[-1:] == ["{"]
        self._last = "k" if key else kind
        return fits

    def _mark(self, character: str) -> bool:
        """Take in a quote, a bracket or a separator; whether it may stand here."""
        if character in _PLAIN:
            fits = self._value("v")
            # Where no value may begin, a single quote is an apostrophe.
            self._quote = character if fits or character == '"' else ""
            return fits
        if character in _OPENED_BY:
            return self._close(_OPENED_BY[character])
        last, self._last = self._last, character
        if character in "{[(":
            fits = last in "[(:=" or (last == "," and self._open[-1:] != ["{"])
            self._open.append(character)
            self.deep |= len(self._open) > _DEEPEST
            return fits
        return last in {":": ("k",), ",": ("v", "w")}.get(character, ())

    def _close(self, opened: str) -> bool:
        """Close a bracket, and those that were left open inside of it."""
        if not (self._open[-1:] == [opened] if self._strict else opened in self._open):
            return False
        while self._open.pop() != opened:
            pass
        self._last = "v"
        self.closed = self.over = not self._open
        return True


class Until:
    """Follows a text up to a mark, which belongs to it."""

    deep = False

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._tail = ""
        self.over = False

    def take(self, text: str, at: int = 0) -> int:
        """Follow the next text from an index; the index behind what belongs to it."""
        window = self._tail + text[at:]
        found = window.find(self._mark)
        self.over = found >= 0
        if self.over:
            return at + found + len(self._mark) - len(self._tail)
        self._tail = window[1 - len(self._mark) :]
        return len(text)


def read_json(text: str, *, cut: bool = False) -> tuple[Any, bool]:
    """The value of JSON text, and whether it was repaired. `cut`: the text may end before the value does.

    Raises:
        Unreadable: it has no value, or none that is safe to guess.
    """
    for strict in (True, False):  # a line end in a string is the commonest mistake, and the cheapest to read
        try:
            value = json.loads(text, strict=strict, parse_constant=_refuse)
        except RecursionError:
            raise Unreadable(_TOO_DEEP) from None
        except ValueError:
            continue
        if text.count("{") + text.count("[") > _DEEPEST:
            _followed(text)
        return value, not strict
    return _repaired(text, cut=cut), True


def arguments_as_written(text: str, values: Sequence[Any], keys: Collection[str]) -> list[str]:
    """JSON texts of the values of one of the keys each, in the order in which they stand in valid JSON text; linear in it."""
    key = re.compile(rf'"(?:{"|".join(keys)})"\s*:\s*')
    written: list[str] = []
    at = 0
    for value in values:
        while found := key.search(text, at):
            decoded, at = _DECODER.raw_decode(text, found.end())
            if decoded == value:
                written.append(text[found.end() : at])
                break
        else:
            written.append(json_text(value))
    return written


def _refuse(constant: str) -> Any:
    """Refuse NaN and Infinity, which are no JSON: clients' parsers fail at them."""
    raise ValueError(constant)


def _followed(text: str) -> tuple[Brackets, int]:
    brackets = Brackets()
    end = brackets.take(text)
    if brackets.deep:
        raise Unreadable(_TOO_DEEP)
    return brackets, end


def _repaired(text: str, *, cut: bool) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        raise Unreadable(_INVALID)
    brackets, end = _followed(text)
    if not brackets.closed and (cut or not brackets.complete):
        raise Unreadable(CUT)
    if len(text) > _LONGEST or end < len(text):
        raise Unreadable(_INVALID)
    import json_repair  # noqa: PLC0415 - only those need it whose models write calls with mistakes

    try:
        return json_repair.loads(text, skip_json_loads=True, strict=True)
    except (ValueError, RecursionError):
        raise Unreadable(_INVALID) from None


class _JsonWords(ast.NodeTransformer):
    """Puts Python's words in place of JSON's, which models mix in."""

    @override
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def read_python(text: str) -> dict[str, Any]:
    """Keyword arguments between parentheses, all of them literals. Nothing is ever run.

    Raises:
        Unreadable: they have no names, or are no literals.
    """
    try:
        if len(text) > _LONGEST_PYTHON or not _LITERALS.fullmatch(text):
            raise Unreadable(_INVALID)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are none
            call = _JsonWords().visit(ast.parse(f"_{text}", mode="eval").body)
        if not isinstance(call, ast.Call) or call.args:
            raise Unreadable(_INVALID)
        return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise Unreadable(_INVALID) from None


def json_text(value: Any) -> str:
    """JSON spaced as chat templates write it, so that a call comes back to the model in the tokens that it generated.

    Raises:
        Unreadable: JSON has no words for it.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise Unreadable(_INVALID) from None
    return text
