"""The JSON object around a call, read as it arrives: its name as soon as it is there, its arguments as a span.

Shapes: `{"name", "arguments"}` (OpenAI, Hermes), `{"name", "parameters"}` (Llama 3), `{"name", "input"}` (Anthropic),
`{"name", "params"}`, `{"tool", "args"}`, and `{"function": {…}}` around one of them (OpenAI API, "Create chat completion", with or without `type`); keys in any order. Only what has to be known to tell a call from other JSON is looked at; mistakes inside of the arguments are repaired later.

A tool's name beside other keys and no arguments is no call: in plain text it is a record that is named like the tool,
between marks that say "call" the arguments are in a place where nobody looks for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.emulation.forms.base import LONGEST_WORD, Span, Words, Written
from proxy.emulation.reader import SPACE, Reader, Step

_NAMES = frozenset({"name", "tool", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "args", "parameters", "input", "params"})
_LABELS = frozenset({"type", "id"})
"""What may stand beside a name and means nothing."""
_KEYS = Words({*_NAMES, *_ARGUMENTS, *_LABELS})
"""Keys that may come before the name."""
_TYPES = Words({"function"})

_SEPARATORS = re.compile(r"[\s,]*")
_SCALAR = re.compile(r"""[^\s,{}\[\]"`<]*""")
_BETWEEN = re.compile(r"""[^\s,:{}\[\]"'`<]*""")
_IN_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_LONGEST_KEY = 32
"""Characters of a key that are read; a longer one means nothing here."""
_PAIRS = {"}": "{", "]": "["}
_STOPS = ("", "`", "<")
"""What stands outside of strings in no JSON, and begins the end of fences and tags; or the end of the text."""
_ENDS = (*_STOPS, "}")
"""What may stand where an array has lost its end."""


@dataclass(slots=True)
class _Envelope:
    name: str | None = None
    arguments: Span | None = None
    closed: bool = False
    rejected: bool = False
    broken: bool = False
    others: bool = False
    """Whether there is more than a name, arguments and labels; or something that the text ended in the middle of."""

    @property
    def misplaced(self) -> bool:
        """Whether what was meant as arguments may be elsewhere."""
        return self.others and self.arguments is None and not self.broken


def read_calls(reader: Reader, names: Words, *, marked: bool = False) -> Step[tuple[Written, ...] | None]:
    """Read an object, or an array of objects, whose bracket was peeked at. `marked`: a tag has said that it is a call.

    Returns the calls; none of them if the text ended before there was a name; None if it is other JSON. The elements of an
    array behind the first one may have names that are unknown, but have to be built like calls.
    """
    if (yield from reader.peek()) == "{":
        return _written([(yield from _envelope(reader, names, sure=False))], marked=marked)
    reader.skip()
    found: list[_Envelope] = []
    while (following := (yield from reader.run(_SEPARATORS))) == "{":
        envelope = yield from _envelope(reader, names, sure=bool(found))
        envelope.rejected |= not marked and _is_record(envelope, names)
        found.append(envelope)
        if envelope.rejected or not envelope.closed:
            return _written(found, marked=marked)
    if following == "]":
        reader.skip()
        return _written(found, marked=marked) if found else None
    if following not in _ENDS or (following and not found):
        return None
    return _written(found, marked=marked)


def _is_record(envelope: _Envelope, names: Words) -> bool:
    """Whether an object that is whole has nothing of a call but maybe a name."""
    bare = envelope.closed and envelope.arguments is None and not envelope.broken
    return bare and (envelope.others or (envelope.name or "") not in names)


def _written(found: list[_Envelope], *, marked: bool) -> tuple[Written, ...] | None:
    if any(e.rejected or (e.closed and e.misplaced and not marked) for e in found):
        return None
    if found and found[0].name is None:
        # It ended without a name, or too early to tell.
        return None if found[0].closed else ()
    return tuple(
        Written(e.name or "", e.arguments, closed=e.closed, broken=e.broken, misplaced=e.misplaced)
        for e in found
    )


def _envelope(reader: Reader, names: Words, *, sure: bool) -> Step[_Envelope]:
    """Read an object whose brace was peeked at. Unless `sure` it is rejected as soon as it can't be a call."""
    envelope = _Envelope()
    reader.skip()
    while not envelope.rejected:
        before = yield from reader.run(_SEPARATORS)
        if before == "}":
            reader.skip()
            envelope.closed = True
            return envelope
        if before in _STOPS:
            envelope.rejected = envelope.name is None and before != ""
            envelope.others |= reader.kept.rstrip().endswith(",")
            return envelope
        known = sure or envelope.name is not None
        key = (yield from _key(reader, known=known)) if before in _IN_STRING else None
        if key is None or not (yield from _colon(reader)):
            if not (yield from reader.peek()):
                envelope.others = True
                return envelope
            envelope.rejected = not known
            if known:
                envelope.broken = True
                envelope.closed = yield from skip_structure(reader, "{")
                return envelope
        elif not (yield from _member(reader, envelope, key, names, sure=sure)):
            return envelope
    return envelope


def _key(reader: Reader, *, known: bool) -> Step[str | None]:
    if not known:
        word, whole = yield from _word(reader, _KEYS)
        return word if whole else None
    quote = yield from reader.peek()
    reader.skip()
    key = ""
    while len(key) < _LONGEST_KEY and (character := (yield from reader.peek())) not in ("", "\\", quote):
        key += character
        reader.skip()
    return key if (yield from _skip_rest(reader, quote)) else None


def _colon(reader: Reader) -> Step[bool]:
    if (yield from reader.run(SPACE)) != ":":
        return False
    reader.skip()
    yield from reader.run(SPACE)
    return True


def _member(reader: Reader, envelope: _Envelope, key: str, names: Words, *, sure: bool) -> Step[bool]:
    """Read the value of a key; False if the object does not go on after it."""
    before = yield from reader.peek()
    if key in _NAMES and envelope.name is None:
        if key == "function" and before == "{":
            return (yield from _inner(reader, envelope, names, sure=sure))
        if before not in _IN_STRING:
            envelope.rejected = before != ""
            return False
        word, whole = yield from _word(reader, None if sure else names)
        envelope.name = word if whole and (sure or word in names) else None
        envelope.rejected = envelope.name is None and bool((yield from reader.peek()))
        return envelope.name is not None
    if key == "type" and envelope.name is None and not sure:
        _, whole = (yield from _word(reader, _TYPES)) if before in _IN_STRING else ("", False)
        envelope.rejected = not whole and bool((yield from reader.peek()))
        return whole
    if key == "description":
        # The definition of a tool, said again.
        envelope.rejected = not sure
    start = reader.offset
    closed = yield from skip_value(reader)
    if key in _ARGUMENTS and envelope.arguments is None and reader.offset > start:
        envelope.arguments = (start, reader.offset)
    envelope.others |= key not in _LABELS and envelope.arguments is None
    return closed


def _inner(reader: Reader, envelope: _Envelope, names: Words, *, sure: bool) -> Step[bool]:
    inner = yield from _envelope(reader, names, sure=sure)
    envelope.name, envelope.rejected, envelope.broken = inner.name, inner.rejected, inner.broken
    envelope.arguments = inner.arguments or envelope.arguments
    envelope.others |= inner.others
    if inner.closed and inner.name is None:
        envelope.rejected = True
    return inner.closed and not inner.rejected


def _word(reader: Reader, words: Words | None) -> Step[tuple[str, bool]]:
    """Read a string as long as it may be one of some words; what was read, and whether it is one of them."""
    quote = yield from reader.peek()
    reader.skip()
    word = ""
    while (character := (yield from reader.peek())) != quote:
        word += character
        if not character or len(word) > LONGEST_WORD or not (words is None or words.may_become(word)):
            return word, False
        reader.skip()
    if words is not None and word not in words:
        return word, False
    reader.skip()
    return word, True


def skip_value(reader: Reader) -> Step[bool]:
    """Consume a JSON value; whether it came to its end."""
    before = yield from reader.peek()
    if before in _IN_STRING:
        return (yield from _skip_string(reader, before))
    if before and before in "{[":
        return (yield from skip_structure(reader, ""))
    return bool((yield from reader.run(_SCALAR)))


def skip_structure(reader: Reader, opened: str) -> Step[bool]:
    """Consume JSON up to where the brackets that were opened are closed; whether they were.

    A closing bracket also closes what was left open inside of its own; one that fits nothing is passed over.
    """
    brackets = list(opened)
    open_now = {bracket: brackets.count(bracket) for bracket in _PAIRS.values()}
    may_begin = True
    """Whether a value may begin here: elsewhere a single quote is an apostrophe."""
    while (character := (yield from reader.peek())) not in _STOPS:
        if character == '"' or (character == "'" and may_begin):
            if not (yield from _skip_string(reader, character)):
                return False
            may_begin = False
            continue
        reader.skip()
        if character in open_now:
            brackets.append(character)
            open_now[character] += 1
        elif character in _PAIRS and open_now[_PAIRS[character]]:
            while (bracket := brackets.pop()) != _PAIRS[character]:
                open_now[bracket] -= 1
            open_now[bracket] -= 1
            if not brackets:
                return True
        if not character.isspace():
            may_begin = character in "{[,:"
            yield from reader.run(SPACE if may_begin else _BETWEEN)
    return False


def _skip_string(reader: Reader, quote: str) -> Step[bool]:
    reader.skip()
    return (yield from _skip_rest(reader, quote))


def _skip_rest(reader: Reader, quote: str) -> Step[bool]:
    """Consume a string from somewhere inside of it to its end; whether it has one."""
    while (character := (yield from reader.run(_IN_STRING[quote]))) != quote:
        if not character:
            return False
        reader.skip()
        if not (yield from reader.peek()):
            return False
        reader.skip()
    reader.skip()
    return True
