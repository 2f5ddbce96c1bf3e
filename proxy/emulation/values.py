"""Values in the JSON and Python that models write: followed as they stream, parsed once complete, repaired if need be.

`json_repair` guesses, so it is used only once the brackets are closed, or nothing but brackets is missing: it never
completes a call that was cut off. Its results count only where they fit the schema of the tool.
"""

import ast
import html
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import regex
from typing_extensions import override

CUT = "cut"
NOT_JSON = "not_json"
UNKNOWN_TOOL = "unknown_tool"
WRONG_ARGUMENTS = "wrong_arguments"
NO_CALL = "no_call"
"""Kinds of calls that cannot be made; `CUT` is also the reason for text that ends before its value does."""
INVALID = "it is not valid JSON"
_DEEPEST = 100
"""Brackets that may be open at a time."""
_LONGEST = 32_768
"""Characters up to which JSON is repaired: `json_repair` takes 1.5 µs for each, and must not hold up the loop."""
_LONGEST_PYTHON = 65_536
"""Characters up to which a call is parsed as Python, which takes some 20 ms for as many."""
_IN_STRING = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*+", re.DOTALL) for quote in "\"'"}
_MARK = regex.compile(r"""["{}\[\]()`<]|(?<=[{\[(,:=]\s{0,20})'""")
"""Characters with a meaning outside of strings. Where no value may begin, a single quote is an apostrophe."""
_OPENED_BY = {"}": "{", "]": "[", ")": "("}
_KEY_LAST = re.compile(r"""[{,]\s*(?:"[^"]*"|'[^']*')\s*\Z""")
_LITERALS = re.compile(
    r"""(?:[\s,:=()\[\]{}]++|[^\W\d]\w*+(?!["'])|[-+]?(?:\d|\.\d)[\w.]*+(?:(?<=[eE])[-+]\d++)?+"""
    r"""|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')*+""",
    re.DOTALL,
)
"""Literals and names, without operators, attributes and formatted strings. Only brackets nest, and few of them, so a model's
text cannot crash Python's parser (see the warning at `ast.literal_eval`)."""
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})|(?<!\\)\\++[nrt]")
_BESIDE = 120
"""Characters that a call in bare text (see `bare`) has besides its tool's name and its arguments."""
_NAMED = r"(?:(?<=[:<|\].,\[]){0}|{0}(?=[({{]))"
_NO_ARGUMENTS = r"(?:,(?:arguments|args|parameters|input|params):|\[args\])?(?:\{\}|\(\)|\}|:</)"
"""Text after the name in a call without arguments."""
_ARGUMENT_ENDS = re.compile(r"[})\]<|]|,[^,:{}()<>\[\]]{1,80}:|\Z")
"""Text after an argument: a bracket, or the next argument's key."""
_JSON_WORDS = {"true": True, "false": False, "null": None}


class Unreadable(ValueError):
    """A call that cannot be made. The text gives the reason to the model, and may quote the model."""

    def __init__(self, why: str, kind: str = NOT_JSON, *, tool: str = "") -> None:
        """`tool`: the tool's name as the model wrote it."""
        super().__init__(why)
        self.kind = CUT if why == CUT else kind
        self.tool = tool


class Brackets:
    """Follows one bracketed value, past strings, to its closing bracket. Linear in the text, however that is cut.

    Mistakes are ignored, except that a backtick or an angle bracket outside of strings ends the value, since a fence or a
    tag ends there.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self.over = self.closed = False

    def follow(self, text: str, at: int) -> int:
        """Follow a growing text from an index; return the index to continue from, or the value's end if it is `over`."""
        while at < len(text) and not self.over:
            if self._quote:
                found = _IN_STRING[self._quote].match(text, at)
                at = at if found is None else found.end()
                if not text.startswith(self._quote, at):
                    break  # the end of the text, or a backslash there
                self._quote = ""
                at += 1
            elif (mark := _MARK.search(text, at)) is None:
                at = len(text)
            elif mark.group() in "`<":
                self.over, at = True, mark.start()
            else:
                self._take(mark.group())
                at = mark.end()
        return at

    def _take(self, mark: str) -> None:
        opened = _OPENED_BY.get(mark)
        if mark in _IN_STRING:
            self._quote = mark
        elif opened is None:
            self._open.append(mark)
            self.over = len(self._open) > _DEEPEST
        elif opened in self._open:
            while self._open.pop() != opened:
                pass  # closes brackets that were left open inside
            self.over = self.closed = not self._open

    def lacks_only_brackets(self, text: str) -> bool:
        """Return whether nothing but closing brackets can be missing at the end of a text that was followed."""
        complete = not self._quote and text.endswith(('"', "'", "}", "]"))
        return complete and not (self._open[-1:] == ["{"] and _KEY_LAST.search(text))


def read_json(text: str, *, cut: bool = False) -> tuple[Any, bool]:
    """Return the value of JSON text, and whether it was repaired. `cut`: the text may end before the value does.

    Raises:
        Unreadable: the text has no value, or guessing one would not be safe.
    """
    for strict in (True, False):  # a raw line break in a string is the commonest mistake, and the cheapest to read
        try:
            return json.loads(text, strict=strict, parse_constant=_refuse), not strict
        except (ValueError, RecursionError):
            continue
    text = text.strip()
    if not text.startswith(("{", "[")):
        raise Unreadable(INVALID)
    brackets = Brackets()
    end = brackets.follow(text, 0)
    if not brackets.closed and (cut or not brackets.lacks_only_brackets(text)):
        raise Unreadable(CUT)
    if len(text) > _LONGEST or end < len(text):
        raise Unreadable(INVALID)
    import json_repair  # noqa: PLC0415 - only those need it whose models write calls with mistakes

    try:
        return json_repair.loads(text, skip_json_loads=True, strict=True), True
    except (ValueError, RecursionError):
        raise Unreadable(INVALID) from None


def _refuse(constant: str) -> Any:
    """Refuse NaN and Infinity, which are not JSON: clients' parsers fail at them."""
    raise ValueError(constant)


class _JsonWords(ast.NodeTransformer):
    """Puts Python's words in place of JSON's, which models mix in."""

    @override
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def read_python(text: str) -> dict[str, Any]:
    """Read keyword arguments between parentheses, all of them literals. Nothing is ever executed.

    Raises:
        Unreadable: an argument has no name, or is not a literal.
    """
    try:
        if len(text) > _LONGEST_PYTHON or not _LITERALS.fullmatch(text):
            raise Unreadable(INVALID)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            call = _JsonWords().visit(ast.parse(f"_{text}", mode="eval").body)
        if not isinstance(call, ast.Call) or call.args:
            raise Unreadable(INVALID)
        return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise Unreadable(INVALID) from None


def json_text(value: Any) -> str:
    """Write JSON with the spaces of chat templates, so that a call returns to the model in the tokens that it generated.

    Raises:
        Unreadable: JSON cannot express the value.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise Unreadable(INVALID) from None
    return text


def bare(text: str) -> str:
    """Reduce a text to the parts that all ways of writing a call have in common.

    White space, quotes and escapes are removed; every separator of a key from its value becomes a colon.
    """
    text = html.unescape(_ESCAPED.sub(lambda code: chr(int(code[1], 16)) if code[1] else "", text))
    text = "".join(text.lower().split())
    for sign in "\"'`\\":
        text = text.replace(sign, "")
    return text.replace("</arg_key><arg_value>", ":").replace("=", ":").replace(">", ":")


def holds_call(text: str, name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a bare text holds a call with these arguments, in any form and order.

    The longest argument is searched for, then the others and the tool's name near it, all of them set off as in code,
    unlike prose. Takes linear time.
    """
    named = _NAMED.format(re.escape(bare(name)))
    values = {key: value if isinstance(value, str) else json_text(value) for key, value in arguments.items()}
    wanted = sorted((f"{bare(key)}:{bare(value)}" for key, value in values.items()), key=len)
    if not wanted:
        return re.search(named + _NO_ARGUMENTS, text) is not None
    reach, searched = sum(map(len, wanted)) + len(name) + _BESIDE, 0
    for end in _ends(text, wanted[-1]):
        if end >= searched:
            searched = end + reach
            near = text[max(0, end - reach) : searched + reach]
            code = re.search(r"[{(<]", near) and re.search(named, near)
            if code and all(any(_ends(near, argument)) for argument in wanted):
                return True
    return False


def _ends(text: str, argument: str) -> Iterator[int]:
    """Yield the index after each occurrence of an argument, if the characters around it delimit an argument."""
    at = text.find(argument)
    while at >= 0:
        end = at + len(argument)
        if text[max(0, at - 1) : at] in "{(,:[" and _ARGUMENT_ENDS.match(text, end):
            yield end
        at = text.find(argument, end)
