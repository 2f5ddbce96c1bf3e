"""`[TOOL_CALLS][{…}]` and `[TOOL_CALLS]NAME[ARGS]{…}`, the latter also without its mark or with an id (Mistral).

The first is that of Mistral's tokenizers up to v7, the second that of v11 and later.
"""

from __future__ import annotations

import re

from proxy.emulation.cursor import Cursor
from proxy.emulation.forms.base import Body, CallForm, Reading
from proxy.emulation.forms.bodies import arguments, between, calls

_ID = re.compile(r"[A-Za-z0-9_-]{0,64}+")


def _begin(cursor: Cursor, reading: Reading) -> Body | bool:
    if cursor.run() in ("[", "{"):
        return calls(cursor, reading, _behind)
    name = cursor.word(reading.names)
    if name not in reading.names:
        return False
    while cursor.run() == "[":
        if cursor.literal("[CALL_ID]"):
            cursor.run(_ID)
        elif not cursor.literal("[ARGS]"):
            return False
    return cursor.run() in ("{", "") and arguments(name, reading, lambda _cursor, _reading: True)


def _behind(cursor: Cursor, reading: Reading) -> Body | bool:
    end, following = between(cursor, reading)
    if following == "{":
        return calls(cursor, reading, _behind)
    cursor.at = end
    return True


MISTRAL = CallForm("mistral", ("[TOOL_CALLS]",), _begin)
