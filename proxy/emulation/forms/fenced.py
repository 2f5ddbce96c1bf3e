"""A code block that holds nothing but calls, marked as JSON, as a tool call, or not at all."""

from __future__ import annotations

import re
from functools import partial

from proxy.emulation.cursor import Cursor, Words
from proxy.emulation.forms.base import Body, CallForm, Reading
from proxy.emulation.forms.bodies import between, calls
from proxy.emulation.forms.tagged import CLOSING, OPENING

FENCE = "```"
_NAMES = ("json", "tool", "tool_call", "tool_calls", "function_call", "xml")
_LANGUAGES = Words(("", *_NAMES, *map(str.upper, _NAMES), *map(str.title, _NAMES)))
_BLANKS = re.compile(r"[ \t]{0,64}+")
_TICKS = re.compile(r"`{0,64}+")


def _begin(cursor: Cursor, reading: Reading) -> Body | bool:
    language = cursor.word(_LANGUAGES)
    if language not in _LANGUAGES or cursor.run(_BLANKS) not in ("\r", "\n", "{", "[", "<"):
        return False
    cursor.run()
    return _next(cursor, reading)


def _next(cursor: Cursor, reading: Reading) -> Body | bool:
    """Calls as JSON, or in the tag that is taught, which models put into a block as well."""
    tag = cursor.literal(OPENING)
    if tag:
        cursor.run()
    return calls(cursor, reading, partial(_behind, tag), marked=tag)


def _behind(tag: bool, cursor: Cursor, reading: Reading) -> Body | bool:  # noqa: FBT001 - bound with `partial`
    _, following = between(cursor, reading)
    if tag and cursor.literal(CLOSING):
        following = cursor.run()
    if following == "`":
        return len(cursor.whole(_TICKS)) >= len(FENCE)
    # Models stop behind the call and leave the block open.
    return following == "" or _next(cursor, reading)


FENCED = CallForm("fenced", (FENCE,), _begin, marked=False)
