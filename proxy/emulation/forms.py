"""Forms in which models write calls, one entry each, and records of the calls that are found.

To add a family, add an entry to `FORMS`, and real output of its models to `tests/emulation/outputs.py`.

A form has a beginning up to its first body, separators between bodies, and an end. A body is a bracketed value, followed to its
closing bracket, or parameters up to a mark. The group `name` matches a tool's name outside of the body; `value` matches where the
body starts, if that is not after the match, and `tool` the name inside the body.
Patterns are matched against incomplete text (`regex`'s partial matches). So a match must not depend on the text that follows, and
runs of white space are bounded.

Sources: Hermes and Qwen's chat templates; Qwen3-Coder's tool parser; Meta's prompt formats of Llama 3.1 ("Custom tool format"), 3.2 and 4
("Zero shot function calling"); mistral-common's tokenizers up to v7 (a list) and v11 (`[ARGS]`); the chat templates of Kimi K2, GLM,
DeepSeek and Granite; MiniMax-M2's and Gemma's guides to function calling.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any, NamedTuple

import regex

from proxy.core.jsontext import omit
from proxy.emulation.values import CUT, Unreadable, read_json, read_python

MOST_CALLS = 128
"""Calls of one answer; any further ones are text."""
TOOL_NAME = re.compile(r"[\w.:/-]{1,64}")
OPENING, CLOSING = "<tool_call>", "</tool_call>"
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "parameters", "input", "params")
_NO_ARGUMENTS = {*_NAMES, "type", "id"}
"""Keys of a call that are not arguments."""

_S = r"\s{0,200}"
_COMMA = r"[\s,]{0,200}"
_BETWEEN = r"[\s,}\]]{0,200}"
"""White space, commas, and superfluous closing brackets."""
_LABEL = rf"""(?:["']type["']{_S}:{_S}["']function["']|["'](?:tool_call_)?id["']{_S}:{_S}["']?[^\s,{{}}\[\]"'`<\\]{{0,64}}["']?){_COMMA}"""
_JSON = (
    rf"""(?P<value>(?:\[{_COMMA})?\{{{_COMMA}(?:{_LABEL}){{0,3}}(?:["']function["']{_S}:{_S}\{{{_COMMA}(?:{_LABEL}){{0,3}})?"""
    rf"""(?:["'](?:{"|".join(_ARGUMENTS)})["']{_S}:|["'](?:{"|".join(_NAMES)})["']{_S}:{_S}["'](?P<tool>[^"'\\\n]{{1,128}})["']))"""
)
"""The beginning of an object, or of an array of them, that starts like a call: with a tool's name, or with its arguments."""
ARGUMENTS = regex.compile(rf"""{_COMMA}(?:{_LABEL}){{0,3}}["'](?:{"|".join(_ARGUMENTS)})["']{_S}:{_S}\{{""")
"""Text after the name in an object that is a call."""
_NAME = r"(?P<name>[\w.:/-]{1,128})"
_BEFORE_OBJECT = rf"{_S}(?=\{{)"
_PYTHON = rf"(?P<name>[\w.:-]{{1,128}}?)(?:\.call)?{_S}(?=\()"
_KEY = r"[^<>\n]{0,256}"
_PARAMETER = rf"<parameter=(?P<key>{_KEY})>(?P<value>.*?)(?:</parameter>|(?=<parameter=))"
_PARAMETERS = rf"(?P<value>>){_S}(?=<parameter=|</function>)"
_FUNCTION_END = r">\s{0,200}</function>"
_LIST_MORE, _LIST_END = rf"{_S},{_S}{_PYTHON}", rf"{_S}(?:,{_S})?\]"
_FENCE = rf"(?:`{{1,64}}[a-z_]{{0,20}}{_S})?"
_PRINT = rf"(?:print\({_S})?(?:default_api\.)?(?!print\()"
_LANGUAGE = r"(?i:json|tool|tool_calls?|function_call|xml)?"
_LINE = r"(?<!\S)(?<=(?:\A|\n)[ \t]{0,3})"
"""The beginning of a line, after at most three blanks (CommonMark: four make it code)."""
_NOT_INSIDE = r"""(?<!(?:[{\[(]|["'}\]\d]\s?,|["']\s?:)\s{0,80})"""
"""Not in the middle of a structure: a plan that contains calls is not a call."""
_CHANNEL = rf"(?:<\|channel\|>(?:commentary|analysis))?{_S}"


@dataclass(frozen=True, slots=True)
class CallForm:
    """One form of calls."""

    name: str
    # One pattern of all marks decides at each bracket whether any form is worth trying. When every form was tried, the
    # tags in 100 kB of HTML took 190 ms of the event loop.
    mark: regex.Pattern[str]
    """Beginning that all texts in this form share; `begin` starts with it."""
    begin: regex.Pattern[str]
    more: regex.Pattern[str] | None = None
    end: regex.Pattern[str] | None = None
    """Required text after the last body; None if the form ends with the body, and closing marks after it mean nothing."""
    closing: regex.Pattern[str] | None = None
    """End of a body of parameters; None if the body is a bracketed value."""
    parameter: regex.Pattern[str] | None = None

    @property
    def marked(self) -> bool:
        """Return whether the mark alone shows that a call is meant."""
        return self.end is None


def _form(name: str, mark: str, begin: str, **patterns: str) -> CallForm:
    compiled = {key: regex.compile(pattern, regex.DOTALL) for key, pattern in patterns.items()}
    return CallForm(name, regex.compile(mark), regex.compile(mark + begin), **compiled)


def _json(name: str, mark: str) -> CallForm:
    """Build a form of objects between marks; some models put a fence inside."""
    return _form(name, mark, rf"{_S}{_FENCE}{_JSON}", more=rf"{_BETWEEN}(?=[{{\[])")


def _invoke(prefix: str) -> CallForm:
    """Build a form of tags with names in quotes. A tag around several calls counts as part of the first and the last."""
    wrapper = rf"(?:<(?:{prefix}(?:function|tool)_calls|minimax:tool_call|tool_call)>{_S})?"
    parameter = rf'<{prefix}parameter{_S}name="'
    return _form(
        "invoke", rf'{wrapper}<{prefix}invoke{_S}name="', rf'{_NAME}"(?P<value>>){_S}(?={parameter}|</{prefix}invoke>)',
        closing=rf">{_S}</{prefix}invoke>",
        parameter=rf'{parameter}(?P<key>[^"<>\n]{{0,256}})"[^<>\n]{{0,64}}>(?P<value>.*?)</{prefix}parameter>',
    )  # fmt: skip


FORMS = (
    # Hermes, Qwen 2.5 and 3; the form that the prompt asks for
    _json("tool_call", OPENING),
    _json("function_call", "<function_call>"),
    # MiniMax-M1, Jamba, Nemotron
    _json("tool_calls", "<(?:tool_calls|TOOLCALL)>"),
    # Granite 3, Phi-4-mini, Command R7B and A
    _json("tool_call_token", r"<\|(?:tool_call|START_ACTION)\|>"),
    # Qwen3-Coder, which forgets the outer tag at times, Seed-OSS, and Llama 3.1
    *(form for name, tag in (("tool_call", f"<(?:seed:)?tool_call>{_S}"), ("function", "")) for form in (
        _form(name, f"{tag}<function=", f"{_NAME}{_PARAMETERS}", closing=_FUNCTION_END, parameter=_PARAMETER),
        _form(name, f"{tag}<function=", f"{_NAME}>{_BEFORE_OBJECT}"))),
    # MiniMax-M2, Claude, DeepSeek-V3.2
    *map(_invoke, ("", "antml:", "｜DSML｜")),
    # GLM-4.5 to 5
    _form("glm", OPENING, rf"{_S}{_NAME}{_S}(?=<arg_key>|</tool_call>)", closing="</tool_call>",
          parameter=rf"<arg_key>(?P<key>{_KEY})</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"),
    # Llama 3.1 and 4
    _form("python_tag", r"<\|python_(?:tag|start)\|>", rf"{_S}{_JSON}", more=rf"{_BETWEEN}(?:;{_S})?(?=\{{)"),
    _form("python_tag", r"<\|python_(?:tag|start)\|>", rf"{_S}\[?{_S}{_PYTHON}", more=_LIST_MORE),
    # LFM2
    _form("tool_call_token", r"<\|tool_call_start\|>", rf"{_S}\[{_S}{_PYTHON}", more=_LIST_MORE),
    # Kimi K2
    _form("kimi", r"<\|tool_call(?:s_section)?_begin\|>",
          rf"(?:{_S}<\|tool_call_begin\|>)?{_S}(?:functions\.)?(?P<name>[\w./-]{{1,128}}?)(?::\d{{1,6}})?{_S}"
          rf"<\|tool_call_argument_begin\|>{_BEFORE_OBJECT}"),
    # DeepSeek-R1 and V3, with a fence, and V3.1
    _form("deepseek", "<｜tool▁calls?▁begin｜>",
          rf"(?:{_S}<｜tool▁call▁begin｜>)?{_S}(?:function<｜tool▁sep｜>)?{_NAME}(?:<｜tool▁sep｜>)?{_S}{_FENCE}(?=\{{)"),
    # gpt-oss ("OpenAI harmony response format", "Receiving tool calls"); its recipient comes before or after the channel
    _form("harmony", r"<\|(?:start\|>assistant|channel\|>(?:commentary|analysis))",
          rf"{_S}{_CHANNEL}to=(?:functions\.)?{_NAME}{_S}{_CHANNEL}(?:<\|constrain\|>)?(?:json)?{_S}<\|message\|>{_BEFORE_OBJECT}"),
    # Mistral: a list up to v7, `[ARGS]` from v11 on
    _form("mistral", r"\[TOOL_CALLS\]", rf"{_S}{_JSON}", more=rf"{_BETWEEN}(?=\{{)"),
    _form("mistral", r"\[TOOL_CALLS\]", rf"{_S}{_NAME}{_S}(?:\[CALL_ID\][\w-]{{0,64}}{_S})?(?:\[ARGS\])?{_BEFORE_OBJECT}"),
    # Llama 3.2 to 4, ToolACE
    _form("pythonic", rf"{_LINE}\[", rf"{_S}{_PYTHON}", more=_LIST_MORE, end=rf"{_LIST_END}[ \t]{{0,64}}(?=[\n\r<])"),
    # Llama 3.1 and 3.2, with `;` between; any other text after it makes it part of a sentence
    _form("bare", rf"{_LINE}{_NOT_INSIDE}(?=[\[{{])", _JSON, more=rf"[ \t]{{0,64}}(?:[;,]{_S})?(?=\{{)", end=r"[ \t]{0,64}(?=[\n\r[<`;,])"),
    # Code blocks; Gemma's hold Python, and some models print the result
    _form("tool_code", "`{3,64}", rf"(?i:tool_code){_S}{_PRINT}{_PYTHON}", more=rf"\)?[\s;]{{1,200}}{_PRINT}{_PYTHON}",
          end=rf"\)?{_S}`{{3,64}}(?=[^`])"),
    _form("fenced", "`{3,64}", rf"{_LANGUAGE}[ \t]{{0,64}}(?=[\n\r{{[<]){_S}(?:<tool_call>{_S})?{_JSON}",
          more=rf"{_BETWEEN}(?:</tool_call>{_S}<tool_call>{_S})?(?=[{{\[])", end=rf"{_BETWEEN}(?:</tool_call>{_S})?`{{3,64}}(?=[^`])"),
)  # fmt: skip
_CLOSING = r"</(?:(?:seed:)?tool_calls?|TOOLCALL|function_calls?|function|minimax:tool_call|(?:antml:|｜DSML｜)(?:function|tool)_calls|s)>|<([|｜])[\w▁/]{1,32}\1>"
BEHIND_CALL = regex.compile(rf"\s++|[;}}\]]|{_CLOSING}|`{{3,64}}(?=\s{{0,200}}<[/|｜])")
"""Remains that models and backends leave after a call, one at a time: white space, and marks that close and end."""
_CLOSED = regex.compile(rf"{_CLOSING}|\n`{{3,64}}\s*\Z")
_TAGGED = [form for form in FORMS if form.mark.match("<", partial=True)]
_SECOND = "".join(
    each for each in f"{ascii_letters}|｜" if any(f.mark.match(f"<{each}", partial=True) for f in _TAGGED)
)
_TAGS = "|".join(dict.fromkeys(form.mark.pattern for form in _TAGGED))
_OTHERS = "|".join(dict.fromkeys(form.mark.pattern for form in FORMS if form not in _TAGGED))
OPENINGS = regex.compile(rf"(?=<[{_SECOND}])(?:{_TAGS}|<think(?:ing)?>)|(?=[\[{{])(?:{_OTHERS})|`")
"""Beginning of a form, of reasoning or of code."""
BY_CHARACTER = {each: [form for form in FORMS if form.begin.match(each, partial=True)] for each in "<[{`"}


class Body(NamedTuple):
    """A body of a form as the model wrote it, with the name before it."""

    name: str
    text: str
    over: bool
    """Whether it ended before the answer did."""
    closed: bool

    @property
    def is_broken(self) -> bool:
        """Return whether this is JSON whose brackets were still open when other text followed, or when its tag was closed."""
        return not self.closed and self.text.startswith(("{", "[")) and (self.over or bool(_CLOSED.search(self.text)))


@dataclass(slots=True)
class Written:
    """One call as the model wrote it, not yet checked against its tool."""

    name: str
    arguments: Any
    """Values, or JSON text of them, or None; unparsed texts by name if they are `parameters`."""
    parameters: bool = False
    repaired: bool = False


def calls_of(form: CallForm, bodies: Sequence[Body], names: Collection[str], *, cut: bool) -> list[Written] | None:
    """Read the calls in the bodies of a form, at least one; None if the text turns out to be other JSON.

    `cut`: the answer was cut off before the form's end.

    Raises:
        Unreadable: a call cannot be read.
    """
    found: list[Written] = []
    for body in bodies:
        if form.parameter is not None:
            if not body.over:
                raise Unreadable(CUT, tool=body.name)
            values = {each["key"]: each["value"] for each in form.parameter.finditer(body.text)}
            found.append(Written(body.name, values, parameters=True))
        elif body.text.startswith("("):
            if not body.closed:
                raise Unreadable(CUT, tool=body.name)
            found.append(Written(body.name, read_python(body.text)))
        elif body.name:
            found.append(Written(body.name, body.text))
        else:
            value, repaired = read_json(body.text, cut=cut and not body.over)
            for item in value if isinstance(value, list) else [value]:
                written = _written(item, names, first=not found, marked=form.marked)
                if written is None:
                    return None
                written.repaired = repaired
                found.append(written)
    return found or None


def _written(item: Any, names: Collection[str], *, first: bool, marked: bool) -> Written | None:
    """Read a call from an object, or None if it is not a call.

    Shapes: `{"name", "arguments"}` (OpenAI, Hermes), `{"name", "parameters"}` (Llama 3), `{"name", "input"}` (Anthropic),
    `{"name", "params"}`, `{"tool", "args"}`, and `{"function": {…}}` around one of them. In plain text an object with a name and
    other keys is some record, not a call; between marks the other keys are the arguments. An object with a description is a
    tool's definition.
    """
    if not isinstance(item, dict):
        return None
    inner = item.get("function")
    members = {**item, **inner} if isinstance(inner, dict) else item
    name = next((members[key] for key in _NAMES if isinstance(members.get(key), str)), "")
    if first and (name not in names or "description" in members):
        return None
    key = next((key for key in _ARGUMENTS if key in members), None)
    others = omit(members, *_NO_ARGUMENTS)
    if key is None and not marked and (others or name not in names):
        return None
    return Written(name, others if key is None else members[key])


# -- results


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made; `arguments` is JSON text of an object."""

    name: str
    arguments: str
    form: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class CallFault:
    """A call that cannot be made, for counters and logs; of the model's words it shows only a tool's name, if that is well formed."""

    reason: str
    """`cut`, `not_json`, `unknown_tool`, `wrong_arguments`, `unread`, or `no_call` where a call was required."""
    tool: str
    form: str
    """Name of the form in which it was written, or `native`."""
    message: str = field(default="", repr=False)
    """Explanation for the model, which may quote it."""


def fault(reason: str, tool: str, form: str, message: str = "") -> CallFault:
    """Build a fault; a tool's name that is not well formed is replaced by `?`."""
    return CallFault(reason, tool if TOOL_NAME.fullmatch(tool) else "?" if tool else "", form, message)


class CallSpan(NamedTuple):
    """Part of an answer that is not sent as text, from index `start` up to, but not including, `end`."""

    start: int
    end: int
    found: tuple[Call, ...] | CallFault | None = ()
    """Calls, or a fault. Empty for white space and marks around calls; None for the same after a fault, which stay text."""
    answered: int = 0
    """Characters of the answer before this part, without reasoning."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls in it that can be made."""
        return self.found if isinstance(self.found, tuple) else ()
