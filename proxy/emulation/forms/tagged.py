"""Calls between tags: JSON, or the tags of one call with its parameters."""

from __future__ import annotations

import re
from dataclasses import replace

from proxy.emulation.forms.base import Found, Read, Span, Words, Written, rest_unless_closed
from proxy.emulation.forms.envelope import read_calls, skip_value
from proxy.emulation.reader import SPACE, Reader, Step

FUNCTION = "<function="
FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_NAME = re.compile(r"[^<>\n]*")
_TEXT = re.compile(r"[^<]*")
_TICKS = re.compile(r"`*")
_LANGUAGE = re.compile(r"[a-z_]*")
_FENCE_END = re.compile(r"[`\s]*")
_BETWEEN = re.compile(r"[\s,]*")
EXTRA_BRACKETS = "extra_brackets"


def reads_json(closing: str) -> Read:
    """A reading of one or several objects, or an array of them, up to a closing tag; maybe in a fence of their own."""

    def read(reader: Reader, names: Words) -> Step[Found | None]:
        following = yield from reader.run(SPACE)
        if following == "<":
            return (yield from _function_inside(reader, names, closing))
        if following == "`":
            for part in (_TICKS, _LANGUAGE, SPACE):
                yield from reader.run(part)
        found = yield from read_several(reader, names, marked=True)
        if found is None or not found.calls:
            return found
        end = reader.offset - len(found.rest)
        if following == "`":
            yield from reader.run(_FENCE_END)
        return Found(found.calls, (yield from rest_unless_closed(reader, closing, end)))

    return read


def _function_inside(reader: Reader, names: Words, closing: str) -> Step[Found | None]:
    if not (yield from reader.literal(FUNCTION)):
        return None if (yield from reader.peek()) else Found(())
    found = yield from read_function(reader, names)
    if found is None or found.rest or not found.calls:
        return found
    return Found(found.calls, (yield from rest_unless_closed(reader, closing, reader.offset)))


def read_several(reader: Reader, names: Words, *, marked: bool = False) -> Step[Found | None]:
    """Read objects, or arrays of them, one after the other, with white space and commas between.

    `marked`: a tag has said that they are calls. Closing brackets that are too many are taken for mistakes. None if anything else than a call is there.
    """
    found: tuple[Written, ...] = ()
    end = reader.offset
    while (following := (yield from reader.run(_BETWEEN))) and following in "{[}]":
        if following in "}]" and found:
            reader.skip()
            found = (*found[:-1], replace(found[-1], repairs=(EXTRA_BRACKETS,)))
            end = reader.offset
            continue
        calls = (yield from read_calls(reader, names, marked=marked)) if following in "{[" else None
        if calls is None:
            return None
        found += calls
        end = reader.offset
        if not calls:
            return Found(found)
        if not calls[-1].closed:
            break
    if following and not found:
        return None
    return Found(found, reader.kept[end:])


def read_function(reader: Reader, names: Words) -> Step[Found | None]:
    """Read on behind `<function=`: a name, then JSON arguments (Llama 3.1) or parameters (Qwen3-Coder)."""
    name = ""
    while (character := (yield from reader.peek())) != ">":
        name += character
        if not character:
            return Found(())
        if not names.may_become(name):
            return None
        reader.skip()
    if name not in names:
        return None
    reader.skip()
    following = yield from reader.run(SPACE)
    if following == "{":
        start = reader.offset
        closed = yield from skip_value(reader)
        call = Written(name, (start, reader.offset), closed=closed)
        return Found((call,), (yield from rest_unless_closed(reader, FUNCTION_END, reader.offset)))
    parameters, closed = yield from _parameters(reader)
    if not closed and (yield from reader.peek()):
        return None
    return Found((Written(name, parameters=parameters, closed=closed),))


def _parameters(reader: Reader) -> Step[tuple[tuple[tuple[Span, Span], ...], bool]]:
    """Read parameters up to the end of the function: spans of names and values, and whether the end was there."""
    found: list[tuple[Span, Span]] = []
    while (yield from reader.run(SPACE)) == "<":
        reader.skip()
        if (yield from reader.peek()) == "/":
            return tuple(found), (yield from reader.literal(FUNCTION_END[1:]))
        if not (yield from reader.literal(_PARAMETER[1:])):
            break
        start = reader.offset
        if (yield from reader.run(_NAME)) != ">":
            break
        name = (start, reader.offset)
        reader.skip()
        start = reader.offset
        while not (yield from reader.literal(_PARAMETER_END)):
            if not (yield from reader.run(_TEXT)):
                return tuple(found), False
        found.append((name, (start, reader.offset - len(_PARAMETER_END))))
    return tuple(found), False
