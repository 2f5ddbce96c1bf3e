"""The JSON object around a call.

Shapes: `{"name", "arguments"}` (OpenAI, Hermes), `{"name", "parameters"}` (Llama 3), `{"name", "input"}` (Anthropic),
`{"name", "params"}`, `{"tool", "args"}`, and `{"function": {…}}` around one of them (OpenAI API, "Create chat completion", with
or without `type`); keys in any order. Only what has to be known to tell a call from other JSON is looked at; mistakes inside of
the arguments are repaired later.

A tool's name beside other keys and no arguments is no call: in plain text it is a record that is named like the tool,
between marks that say "call" the arguments are in a place where nobody looks for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.emulation.cursor import Cursor, Words
from proxy.emulation.forms.base import RawCall
from proxy.emulation.nesting import Nesting

_NAMES = frozenset({"name", "tool", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "args", "parameters", "input", "params"})
_LABELS = frozenset({"type", "id"})
"""What may stand beside a name and means nothing."""
_KEYS = Words({*_NAMES, *_ARGUMENTS, *_LABELS})
"""Keys that may come before the name."""
_TYPES = Words({"function"})

_SEPARATORS = re.compile(r"[\s,]*+")
_QUOTES = ('"', "'")
_TEXT = r"""(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)')"""
_STRING = re.compile(_TEXT, re.DOTALL)
_KEY = re.compile(_TEXT + r"\s*+:\s*+", re.DOTALL)
_HALF_KEY = re.compile(r"""(?:"(?:[^"\\]|\\.)*+["\\]?|'(?:[^'\\]|\\.)*+['\\]?)\s*+""", re.DOTALL)
_SCALAR = re.compile(r"""[^\s,{}\[\]"`<]*+""")
_ID = re.compile(r"""[^\s,{}\[\]"'`<\\]{0,64}+""")


def begins(cursor: Cursor, names: Words) -> bool:
    """Whether an object, or the first one of an array, begins like a call: with a tool's name, or with its arguments.

    Raises:
        More: it is too early to tell.
    """
    if cursor.literal("[") and cursor.run(_SEPARATORS) != "{":
        return False
    cursor.at += 1
    while (quote := cursor.run(_SEPARATORS)) in _QUOTES:
        cursor.at += 1
        key = cursor.word(_KEYS)
        if key not in _KEYS or not cursor.literal(quote) or cursor.run() != ":":
            return False
        cursor.at += 1
        value = cursor.run()
        if key in _ARGUMENTS:
            return True
        if key == "function" and value == "{":
            cursor.at += 1
            continue
        if key != "id" and value not in _QUOTES:
            break
        cursor.at += value in _QUOTES
        if key in _NAMES:
            return cursor.word(names) in names and cursor.literal(value)
        fits = cursor.word(_TYPES) in _TYPES if key == "type" else cursor.run(_ID) != ""
        if not fits or (value in _QUOTES and not cursor.literal(value)):
            break
    return False


def calls_of_json(text: str, names: Words, *, marked: bool) -> list[RawCall] | None:
    """The calls in an object or an array of objects, which may have broken off; None if it is other JSON.

    `marked`: a tag has said that they are calls. The elements of an array behind the first one may have names that are
    unknown, but have to be built like calls.
    """
    found: list[RawCall] = []
    at = 0 if text.startswith("{") else _after(_SEPARATORS, text, 1)
    while text.startswith("{", at):
        one = _object(text, at)
        written = _written(one, names, first=not found, marked=marked)
        if written is None:
            return None
        found.append(written)
        at = _after(_SEPARATORS, text, one.end)
    return found if found and text[at : at + 1] in ("", "]", "}") else None


@dataclass(slots=True)
class _Object:
    """An object as it is written, up to where the text breaks off."""

    members: dict[str, str]
    """Values as they are written; an empty name stands for what was broken off."""
    end: int
    closed: bool = False
    broken: bool = False
    """Whether it is no JSON."""


def _object(text: str, start: int) -> _Object:
    found = _Object({}, start + 1)
    while True:
        at = _after(_SEPARATORS, text, found.end)
        if at == len(text) or text[at] == "}":
            found.closed = at < len(text)
            found.end = at + found.closed
            if not found.closed and text.rstrip().endswith(","):
                found.members[""] = ""
            return found
        key = _KEY.match(text, at)
        if key is not None:
            found.end = _end_of_value(text, key.end())
            value = text[key.end() : found.end]
            found.members.setdefault((key[1] or key[2] or "") if value else "", value)
        elif _HALF_KEY.fullmatch(text, at):
            found.members[""] = ""
            found.end = len(text)
        else:
            nesting = Nesting(lenient=True)
            found.end = start + nesting.take(text, start)
            found.closed, found.broken = nesting.closed, True
            return found


def _written(one: _Object, names: Words, *, first: bool, marked: bool) -> RawCall | None:
    """The call that an object is, if it is one."""
    members = dict(one.members)
    broken = one.broken
    if members.get("function", "").startswith("{"):
        inner = _object(members.pop("function"), 0)
        members |= inner.members
        broken |= inner.broken
    named = next((key for key in members if key in _NAMES), None)
    name = members.pop(named)[1:-1] if named and _STRING.fullmatch(members[named]) else ""
    arguments = next((value for key, value in members.items() if key in _ARGUMENTS), None)
    nothing = arguments is None and not broken
    others = not members.keys() <= _LABELS
    # The definition of a tool, said again, has a description.
    if first and (name not in names or "description" in members):
        return None
    if nothing and one.closed and not marked and (others or name not in names):
        return None
    return RawCall(name, arguments, closed=one.closed, broken=broken, misplaced=nothing and others)


def _end_of_value(text: str, at: int) -> int:
    if text.startswith(("{", "["), at):
        return at + Nesting(lenient=True).take(text, at)
    if text.startswith(_QUOTES, at):
        return _after(_STRING, text, at) if _STRING.match(text, at) else len(text)
    return _after(_SCALAR, text, at)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
