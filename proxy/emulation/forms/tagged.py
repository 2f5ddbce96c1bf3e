"""Calls between tags: `<tool_call>` (Hermes, Qwen 2.5 and 3; the form that is taught), `<function_call>` and `<function=NAME>`.

Between the former there is JSON, maybe in a fence of its own, or what Qwen3-Coder writes: `<function=NAME>` with `<parameter=NAME>`
tags inside; it forgets the outer tag at times. Llama 3.1 writes `<function=NAME>{…}</function>`.
"""

from __future__ import annotations

import re
from functools import partial

from proxy.emulation.cursor import Cursor
from proxy.emulation.forms.base import Body, CallForm, Reading
from proxy.emulation.forms.bodies import between, calls, close, function

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_FUNCTION = "<function="
_FENCE = re.compile(r"`{0,64}+[a-z_]{0,20}+\s*+")
_FENCE_END = re.compile(r"[`\s]*+")


def tagged(closing: str, cursor: Cursor, reading: Reading) -> Body | bool:
    """Behind a tag: one or several objects, or arrays of them, or a function, up to the closing tag."""
    following = cursor.run()
    if following == "<":
        return cursor.literal(_FUNCTION) and function(cursor, reading, closing)
    if following == "`":
        cursor.run(_FENCE)
    return calls(cursor, reading, partial(_behind, closing))


def _behind(closing: str, cursor: Cursor, reading: Reading) -> Body | bool:
    end, following = between(cursor, reading)
    if following in ("{", "["):
        return calls(cursor, reading, partial(_behind, closing))
    cursor.run(_FENCE_END)
    return close(cursor, closing, end=end)


TOOL_CALL = CallForm("tool_call", (OPENING,), partial(tagged, CLOSING))
FUNCTION_CALL = CallForm("function_call", ("<function_call>",), partial(tagged, "</function_call>"))
FUNCTION = CallForm("function", (_FUNCTION,), function)
