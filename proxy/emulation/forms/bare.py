"""A JSON object, or an array of them, at the beginning of a line (Llama 3.1 and 3.2 write so, with `;` between).

A bracket there may as well begin a list of calls in Python.
"""

from __future__ import annotations

import re

from proxy.emulation.cursor import Cursor
from proxy.emulation.forms.base import Body, CallForm, Reading
from proxy.emulation.forms.bodies import calls, close
from proxy.emulation.forms.pythonic import LISTED
from proxy.emulation.forms.tagged import CLOSING

_BLANKS = re.compile(r"[ \t]*+")
_AFTER = ("", "\n", "\r", "{", "[", "<", "`")
"""What may come behind a call on its line; anything else makes it part of a sentence."""
_SEPARATORS = (";", ",")


def _begin(cursor: Cursor, reading: Reading) -> Body | bool:
    start = cursor.at
    if cursor.literal("[") and cursor.run() not in ("{", ","):
        reading.form = LISTED
        return LISTED.begin(cursor, reading)
    cursor.at = start
    return _objects(cursor, reading)


def _objects(cursor: Cursor, reading: Reading) -> Body | bool:
    return calls(cursor, reading, _behind, marked=False)


def _behind(cursor: Cursor, reading: Reading) -> Body | bool:
    end = cursor.at
    if not reading.calls[-1].closed:
        return True
    following = cursor.run(_BLANKS)
    if following in _SEPARATORS:
        cursor.at += 1
        following = cursor.run()
        if following != "{":
            cursor.at = end
            return True
    elif following not in _AFTER:
        return False
    # A closing tag is left over where the backend swallowed the opening one, a token of its own.
    return _objects(cursor, reading) if following == "{" else close(cursor, CLOSING, end=end)


BARE = CallForm("bare", ("{", "["), _begin, marked=False, at_line_start=True)
