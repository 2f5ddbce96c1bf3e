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
from proxy.emulation.forms.base import Written
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
_STRING = re.compile(r""""((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'""", re.DOTALL)
_COLON = re.compile(r"\s*+:\s*+")
_SCALAR = re.compile(r"""[^\s,{}\[\]"`<]*+""")
_ID = re.compile(r"""[^\s,{}\[\]"'`<\\]{0,64}+""")
_HALF_KEY = re.compile(r""""(?:[^"\\]|\\.)*+\\?|'(?:[^'\\]|\\.)*+\\?""", re.DOTALL)


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


@dataclass(slots=True)
class _Envelope:
    name: str | None = None
    arguments: str | None = None
    closed: bool = False
    rejected: bool = False
    broken: bool = False
    others: bool = False
    """Whether there is more than a name, arguments and labels; or something that the text ended in the middle of."""

    @property
    def misplaced(self) -> bool:
        """Whether what was meant as arguments may be elsewhere."""
        return self.others and self.arguments is None and not self.broken


def calls_in(text: str, names: Words, *, marked: bool) -> list[Written] | None:
    """The calls in an object or an array of objects, which may have broken off; None if it is other JSON.

    `marked`: a tag has said that they are calls. The elements of an array behind the first one may have names that are
    unknown, but have to be built like calls.
    """
    if text.startswith("{"):
        found = [_envelope(text, 0, names, sure=False)[0]]
    else:
        found, at = [], _after(_SEPARATORS, text, 1)
        while text.startswith("{", at):
            envelope, at = _envelope(text, at, names, sure=bool(found))
            if not marked and _is_record(envelope, names):
                return None
            found.append(envelope)
            at = _after(_SEPARATORS, text, at)
        if text[at : at + 1] not in ("", "]", "}"):
            return None
    if any(e.rejected or (e.closed and e.misplaced and not marked) for e in found):
        return None
    if not found or found[0].name is None:
        return None
    return [
        Written(e.name or "", e.arguments, closed=e.closed, broken=e.broken, misplaced=e.misplaced)
        for e in found
    ]


def _is_record(envelope: _Envelope, names: Words) -> bool:
    """Whether an object that is whole has nothing of a call but maybe a name."""
    bare = envelope.closed and envelope.arguments is None and not envelope.broken
    return bare and (envelope.others or (envelope.name or "") not in names)


def _envelope(text: str, at: int, names: Words, *, sure: bool) -> tuple[_Envelope, int]:
    """Read an object up to its end, or to where the text breaks off. Unless `sure` it is rejected if it can't be a call."""
    envelope = _Envelope()
    start, at = at, at + 1
    while not envelope.rejected:
        at = _after(_SEPARATORS, text, at)
        if at == len(text) or text[at] == "}":
            envelope.closed = at < len(text)
            envelope.others |= not envelope.closed and text.rstrip().endswith(",")
            return envelope, at + envelope.closed
        key = _STRING.match(text, at)
        colon = _COLON.match(text, key.end()) if key else None
        if key and colon:
            at = _member(envelope, key[1] or key[2] or "", text, colon.end(), names, sure=sure)
        elif (not key and _HALF_KEY.fullmatch(text, at)) or (key and not text[key.end() :].strip()):
            envelope.others = True
            return envelope, len(text)
        else:
            envelope.rejected = envelope.name is None and not sure
            envelope.broken = True
            nesting = Nesting(lenient=True)
            at = start + nesting.take(text[start:])
            envelope.closed = nesting.closed
            return envelope, at
    return envelope, at


def _member(envelope: _Envelope, key: str, text: str, at: int, names: Words, *, sure: bool) -> int:
    """Read the value of a key; where it ends."""
    if key in _NAMES and envelope.name is None:
        if key == "function" and text.startswith("{", at):
            return _inner(envelope, text, at, names, sure=sure)
        name = _STRING.match(text, at)
        said = (name[1] or name[2] or "") if name else ""
        if name and (sure or said in names):
            envelope.name = said
        else:
            envelope.rejected = at < len(text)
        return name.end() if name else len(text)
    end = _end_of_value(text, at)
    if key == "type" and envelope.name is None and not sure:
        envelope.rejected = text[at + 1 : end - 1] not in _TYPES
    elif key == "description":
        # The definition of a tool, said again.
        envelope.rejected = not sure
    elif key in _ARGUMENTS and envelope.arguments is None and end > at:
        envelope.arguments = text[at:end]
    envelope.others |= key not in _LABELS and envelope.arguments is None
    return end


def _inner(envelope: _Envelope, text: str, at: int, names: Words, *, sure: bool) -> int:
    inner, at = _envelope(text, at, names, sure=sure)
    envelope.name, envelope.broken = inner.name, inner.broken
    envelope.arguments = inner.arguments or envelope.arguments
    envelope.others |= inner.others
    envelope.rejected = inner.rejected or (inner.closed and inner.name is None)
    return at


def _end_of_value(text: str, at: int) -> int:
    if text.startswith(("{", "["), at):
        return at + Nesting(lenient=True).take(text[at:])
    string = _STRING.match(text, at)
    if text.startswith(_QUOTES, at):
        return string.end() if string else len(text)
    return _after(_SCALAR, text, at)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
