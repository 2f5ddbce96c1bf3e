"""Calls as Python writes them: `[get_weather(city="Paris"), now()]` alone on its lines, and what stands behind Llama's own marks.

Llama 3.2, 3.3 and 4, and ToolACE, write the list (Meta's prompt format of Llama 4, "Zero shot function calling"; vLLM's parsers
`pythonic` and `llama4_pythonic`). Behind `<|python_tag|>` Llama 3.1 writes JSON, or one call (`NAME.call(…)` of tools that it was
trained with); Llama 4 puts the list between `<|python_start|>` and `<|python_end|>`. Arguments have names, and are literals.
"""

from __future__ import annotations

import re
from functools import partial

from proxy.emulation.cursor import Cursor
from proxy.emulation.forms.base import Body, CallForm, RawCall, Reading, Step
from proxy.emulation.forms.bodies import between, calls, close
from proxy.emulation.forms.literals import Parentheses, arguments_of

_END = "<|python_end|>"
_NAME = re.compile(r"[\w.-]{0,256}+")
_BLANKS = re.compile(r"[ \t]*+")
_AFTER = ("", "\n", "\r", "<")
"""What may come behind a list on its line; anything else makes it part of a sentence, or a link."""


def listed(cursor: Cursor, reading: Reading) -> Body | bool:
    """A list of calls, behind its bracket, at the beginning of a line."""
    return _call(cursor, reading, partial(_next, alone=True))


def _call(cursor: Cursor, reading: Reading, then: Step, *, known: bool = True) -> Body | bool:
    """A name and its arguments; one that is not `known` need not be a tool's, so that it can be said that it is none."""
    cursor.run()
    name = cursor.word(reading.names) if known else cursor.whole(_NAME)
    if (known and name not in reading.names) or not name:
        return False
    cursor.literal(".call")
    if cursor.peek() != "(":
        return False
    follower = Parentheses()

    def use(text: str) -> bool:
        if follower.over and not follower.closed:
            return False
        found = arguments_of(text) if follower.closed else None
        cut = not follower.closed
        reading.calls.append(RawCall(name, found, closed=not cut, broken=found is None, misplaced=cut))
        return True

    return Body(follower, use, then)


def _next(cursor: Cursor, reading: Reading, *, alone: bool) -> Body | bool:
    """Behind a call in a list: another one, or its end. `alone`: nothing else may stand on the line."""
    following = cursor.run()
    if following == ",":
        cursor.at += 1
        if cursor.run() != "]":
            return _call(cursor, reading, partial(_next, alone=alone), known=False)
        following = "]"
    if following == "":
        # Models stop behind the call and leave the list open.
        reading.calls[-1].closed = False
        return True
    if following != "]":
        return False
    cursor.at += 1
    end = cursor.at
    if alone and cursor.run(_BLANKS) not in _AFTER:
        return False
    return close(cursor, _END, end=end)


def _begin(cursor: Cursor, reading: Reading) -> Body | bool:
    """Behind a mark: JSON, a list, or one call."""
    following = cursor.run()
    if following == "[":
        start = cursor.at
        cursor.at += 1
        if cursor.run() != "{":
            return _call(cursor, reading, partial(_next, alone=False))
        cursor.at = start
    if following in ("{", "["):
        return calls(cursor, reading, _behind)
    return _call(cursor, reading, lambda cursor, _: close(cursor, _END))


def _behind(cursor: Cursor, reading: Reading) -> Body | bool:
    """Behind an object: another one (Llama 3 puts `;` between them), or the end."""
    end, following = between(cursor, reading)
    if following == ";":
        cursor.at += 1
        following = cursor.run()
    if following == "{":
        return calls(cursor, reading, _behind)
    return close(cursor, _END, end=end)


LISTED = CallForm("pythonic", ("[",), listed, marked=False, at_line_start=True)
PYTHON_TAG = CallForm("python_tag", ("<|python_tag|>", "<|python_start|>"), _begin)
