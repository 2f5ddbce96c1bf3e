"""Values in the JSON and Python that models write: followed as they stream, parsed once they are complete, repaired if need be.

`json_repair` guesses, so it is only asked once the brackets are closed, or nothing but brackets is missing: it never completes
a call that was cut off. Its results count only where they fit the schema of the tool.
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
"""Kinds of calls that can't be made; `CUT` is the reason as well of what ends before its value does."""
INVALID = "it is not valid JSON"
_DEEPEST = 100
"""Brackets that are open at a time."""
_LONGEST = 32_768
"""Characters that are repaired: `json_repair` takes 1.5 µs for each, and must not hold up the loop."""
_LONGEST_PYTHON = 65_536
"""Characters that are parsed as Python, which takes some 20 ms for them."""
_IN_STRING = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*+", re.DOTALL) for quote in "\"'"}
_MARK = regex.compile(r"""["{}\[\]()`<]|(?<=[{\[(,:=]\s{0,20})'""")
"""What counts outside of strings. Where no value may begin, a single quote is an apostrophe."""
_OPENED_BY = {"}": "{", "]": "[", ")": "("}
_KEY_LAST = re.compile(r"""[{,]\s*(?:"[^"]*"|'[^']*')\s*\Z""")
_LITERALS = re.compile(
    r"""(?:[\s,:=()\[\]{}]++|[^\W\d]\w*+(?!["'])|[-+]?(?:\d|\.\d)[\w.]*+(?:(?<=[eE])[-+]\d++)?+"""
    r"""|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')*+""",
    re.DOTALL,
)
"""Literals and names without operators, attributes and formatted strings: nothing nests but brackets, of which there are few, so
that Python's parser can't be brought down by what a model writes (the warning at `ast.literal_eval`)."""
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})|(?<!\\)\\++[nrt]")
_BESIDE = 120
"""Characters of a call, of a text as `bare` makes it, beside its tool's name and its arguments."""
_NAMED = r"(?:(?<=[:<|\].,\[]){0}|{0}(?=[({{]))"
_NO_ARGUMENTS = r"(?:,(?:arguments|args|parameters|input|params):|\[args\])?(?:\{\}|\(\)|\}|:</)"
"""What follows the name in a call without arguments."""
_ARGUMENT_ENDS = re.compile(r"[})\]<|]|,[^,:{}()<>\[\]]{1,80}:|\Z")
"""What follows an argument: a bracket, or the next one's key."""
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
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self.over = self.closed = False

    def follow(self, text: str, at: int) -> int:
        """Follow a text that only grows from an index on; the index to go on from, or behind the value if it is `over`."""
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
                pass  # those that were left open inside
            self.over = self.closed = not self._open

    def lacks_only_brackets(self, text: str) -> bool:
        """Return whether nothing else can be missing at the end of a text that was followed."""
        complete = not self._quote and text.endswith(('"', "'", "}", "]"))
        return complete and not (self._open[-1:] == ["{"] and _KEY_LAST.search(text))


def read_json(text: str, *, cut: bool = False) -> tuple[Any, bool]:
    """The value of JSON text, and whether it was repaired. `cut`: the text may end before the value does.

    Raises:
        Unreadable: it has no value, or none that is safe to guess.
    """
    for strict in (True, False):  # a line end in a string is the commonest mistake, and the cheapest to read
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
    """Refuse NaN and Infinity, which are no JSON: clients' parsers fail at them."""
    raise ValueError(constant)


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
            raise Unreadable(INVALID)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are none
            call = _JsonWords().visit(ast.parse(f"_{text}", mode="eval").body)
        if not isinstance(call, ast.Call) or call.args:
            raise Unreadable(INVALID)
        return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise Unreadable(INVALID) from None


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
        raise Unreadable(INVALID) from None
    return text


def bare(text: str) -> str:
    """Reduce a text to what all ways to write a call have in common.

    Left out are white space, quotes and escapes; a colon is what parts a key from its value.
    """
    text = html.unescape(_ESCAPED.sub(lambda code: chr(int(code[1], 16)) if code[1] else "", text))
    text = "".join(text.lower().split())
    for sign in "\"'`\\":
        text = text.replace(sign, "")
    return text.replace("</arg_key><arg_value>", ":").replace("=", ":").replace(">", ":")


def holds_call(text: str, name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a bare text holds a call with these arguments, in whatever form and order.

    The longest argument is looked for, and the others and the tool's name near it, all of them as code has them and not
    prose. The time is linear in the text.
    """
    named = _NAMED.format(re.escape(bare(name)))
    values = {key: value if isinstance(value, str) else json_text(value) for key, value in arguments.items()}
    wanted = sorted((f"{bare(key)}:{bare(value)}" for key, value in values.items()), key=len)
    if not wanted:
        return re.search(named + _NO_ARGUMENTS, text) is not None
    reach, looked_at = sum(map(len, wanted)) + len(name) + _BESIDE, 0
    for end in _ends(text, wanted[-1]):
        if end >= looked_at:
            looked_at = end + reach
            near = text[max(0, end - reach) : looked_at + reach]
            code = re.search(r"[{(<]", near) and re.search(named, near)
            if code and all(any(_ends(near, argument)) for argument in wanted):
                return True
    return False


def _ends(text: str, argument: str) -> Iterator[int]:
    """Yield the index behind each occurrence of an argument that begins and ends as one."""
    at = text.find(argument)
    while at >= 0:
        end = at + len(argument)
        if text[max(0, at - 1) : at] in "{(,:[" and _ARGUMENT_ENDS.match(text, end):
            yield end
        at = text.find(argument, end)
