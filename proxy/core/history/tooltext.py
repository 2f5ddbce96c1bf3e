"""Tool calls and results that stand in a history as text, for models without tools of their own.

Calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in assistant messages, the form that models are taught
(`proxy.emulation.protocol`). Results: `<tool_result tool_name='…'>…</tool_result>` and `[TOOL_RESULT]…[/TOOL_RESULT]` in user
messages. Content is a string or a list of parts, each of whose texts is read on its own. All in time linear in the texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.history.blocks import Span, blocks_in
from proxy.core.history.client_compaction import brought_from
from proxy.core.history.marks import INSTRUCTION
from proxy.core.request import Message, text_of

IMAGE_OMITTED = "[An image{} was here and was left out to save room.]"
"""Stands in place of an old image; in a message with results it is no word of the user's."""
RULE = "[For this answer: {}.]"
"""What a request demands of one answer, behind the last message: no word of the user's either."""
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_MISSES = 64
"""Openings without a call behind them after which no more calls are looked for: each may cost the length of the text."""
_NAMES = ("name", "tool")
_ARGUMENTS = ("arguments", "args", "parameters")
# Nothing here can run over a `<` or a bracket, so that no text is read twice.
_MARK = re.compile(
    r"(?P<bracket>\[TOOL_RESULT\])|(?P<tag><tool_result(?P<fields>\s[^<>]*)?>)"
    r"|(?P<bracket_end>\[/TOOL_RESULT\])|(?P<tag_end></tool_result>)"
)
_WORDS = ("tool_result", "TOOL_RESULT")
"""One of them is in every mark, behind one or two characters; looking for them is many times faster than for marks."""
_BEGINS = re.compile(r"\s*(?:\[TOOL_RESULT\]|<tool_result[\s>])")
_NAME = re.compile(r"""\b(?:tool_name|name)=(?:'([^'<>]*)'|"([^"<>]*)")""")
_ARGUMENTS_FIELD = re.compile(r"""\b(?:arguments|args|parameters)=(?:'([^'<>]*)'|"([^"<>]*)")""")
_SPACE = re.compile(r"\s*")
_WRITTEN = re.compile(r"\[(?:An image[^\[\]]* was here and was left out to save room|For this answer: [^\[\]]*)\.\]")
_NO_WORDS = re.compile(rf"\s*(?:{_WRITTEN.pattern}\s*)*")
_VALUE = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call in a text: where it stands, marks and all, its tool, and its arguments as they were written."""

    span: Span
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A result in a text: where it stands, marks and all, and where what is between the marks does."""

    span: Span
    inside: Span
    name: str | None
    """What its mark says, like the arguments."""
    arguments: str | None


def texts_of(message: Message) -> Iterator[tuple[int | None, str]]:
    """The texts of a message, with the index of the part that each stands in; None if the content is a string."""
    content = message.get("content")
    if isinstance(content, str):
        yield None, content
    elif isinstance(content, list):
        for index, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield index, part["text"]


def calls_in(text: str) -> list[WrittenCall]:
    """The calls that a text holds, in order; what is no JSON object with a name is none."""
    found: list[WrittenCall] = []
    at, misses = text.find(_CALL), 0
    while at >= 0 and misses < _MISSES:
        inside = at + len(_CALL)
        calls = list(_objects(text, inside))
        if calls:
            end = _space(text, calls[-1].span[1])
            inside = end + len(_CALL_END) if text.startswith(_CALL_END, end) else calls[-1].span[1]
            # Of several between two marks the first one takes the opening, the last one the closing.
            ends = [*(call.span[1] for call in calls[:-1]), inside]
            for call, start, stop in zip(calls, [at, *ends], ends, strict=False):
                found.append(WrittenCall((start, stop), call.name, call.arguments))
        misses += not calls
        at = text.find(_CALL, inside)
    return found


def results_in(text: str) -> Iterator[WrittenResult]:
    """Results between marks. Of several openings the last one counts: what is before it may be the user's words."""
    opened: dict[str, re.Match[str]] = {}
    for mark in _marks(text):
        kind = _kind(mark)
        if not _closes(mark):
            opened[kind] = mark
        elif kind in opened:
            opening = opened[kind]
            fields = opening["fields"] or ""
            yield WrittenResult(
                (opening.start(), mark.end()),
                (opening.end(), mark.start()),
                _field(_NAME, fields),
                _field(_ARGUMENTS_FIELD, fields),
            )
            opened.clear()


def only_results(message: Message) -> bool:
    """Return whether a message consists of tool results alone. Parts that are not text, such as images, count as theirs."""
    found = False
    for _, text in texts_of(message):
        if _NO_WORDS.fullmatch(text):
            continue
        results = [result.span for result in results_in(text)] if _BEGINS.match(text) else []
        if not results or not _NO_WORDS.fullmatch(without(text, results)):
            return False
        found = True
    return found


def spoken(message: Message) -> str:
    """Return a message's texts without the calls of an assistant, or the tool results of a user."""
    role = message.get("role")
    return "\n".join(without(text, _spans(role, text)) for _, text in texts_of(message))


def authored_text(message: Message) -> str:
    """Return the part of a user message that is surely the user's: nothing from the first mark of a result to the last of its kind.

    A result that holds a closing mark would else put its rest into the user's mouth, and one that is cut off all of it.
    Neither is what the system says there, nor what Spillway wrote, nor the summary with which a client goes on, nor what a
    program puts around the user's words.
    """
    text = text_of(message)
    if text.startswith(INSTRUCTION):
        return ""
    text = _WRITTEN.sub("", text.split(f"\n{INSTRUCTION}", 1)[0])
    text = text[: brought_from(text)]
    marks = list(_marks(text))
    last = {_kind(mark): mark for mark in marks}
    spans: list[Span] = []
    for mark in marks:
        after = spans[-1][1] if spans else 0
        if mark.start() >= after:
            end = last[_kind(mark)]
            start = after if _closes(mark) else mark.start()
            spans.append((start, end.end() if _closes(end) else len(text)))
    text = without(text, spans)
    return without(text, (block.span for block in blocks_in(text)))


def without(text: str, spans: Iterable[Span], *, replacement: str = "") -> str:
    """Cut spans, which are in order, out of a text, with `replacement` in place of each."""
    pieces: list[str] = []
    after = 0
    for start, end in spans:
        pieces.append(text[after:start])
        after = end
    return replacement.join((*pieces, text[after:])) if pieces else text


def _marks(text: str) -> Iterator[re.Match[str]]:
    after = 0
    for at in sorted(found.start() for word in _WORDS if word in text for found in re.finditer(word, text)):
        mark = _MARK.match(text, max(0, at - 1)) or _MARK.match(text, max(0, at - 2))
        if mark is not None and mark.start() >= after:
            after = mark.end()
            yield mark


def _kind(mark: re.Match[str]) -> str:
    return str(mark.lastgroup).removesuffix("_end") if mark["fields"] is None else "tag"


def _closes(mark: re.Match[str]) -> bool:
    return mark.group().startswith(("[/", "</"))


def _spans(role: Any, text: str) -> Sequence[Span]:
    if role == "assistant":
        return [call.span for call in calls_in(text)]
    return [result.span for result in results_in(text)] if role == "user" else []


def _field(pattern: re.Pattern[str], fields: str) -> str | None:
    found = pattern.search(fields)
    return found[found.lastindex] if found is not None and found.lastindex is not None else None


def _objects(text: str, at: int) -> Iterator[WrittenCall]:
    """Calls one after the other; the first thing that is none ends them."""
    while text.startswith("{", at := _space(text, at)):
        try:
            members, end = _members(text, at)
        except (ValueError, IndexError, RecursionError):
            return
        name = next((members[key][0] for key in _NAMES if key in members), None)
        if not isinstance(name, str):
            return
        value, written = next((members[key] for key in _ARGUMENTS if key in members), ({}, "{}"))
        # In OpenAI's API the arguments are a string that holds JSON.
        yield WrittenCall((at, end), name, value.strip() if isinstance(value, str) else written)
        at = end


def _members(text: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """The members of an object, each with the text of its value, and the index behind it.

    Raises:
        ValueError: it is not JSON.
        IndexError: its end is missing.
        RecursionError: it is nested too deeply.
    """
    members: dict[str, tuple[Any, str]] = {}
    at = _space(text, at + 1)
    while text[at] != "}":
        key, at = _VALUE(text, at)
        at = _space(text, at)
        if not isinstance(key, str) or text[at] != ":":
            raise ValueError(text[at])
        start = _space(text, at + 1)
        value, end = _VALUE(text, start)
        members[key] = value, text[start:end]
        at = _space(text, end)
        if text[at] == ",":
            at = _space(text, at + 1)
        elif text[at] != "}":
            raise ValueError(text[at])
    return members, at + 1


def _space(text: str, at: int) -> int:
    """The index of the next character that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at
