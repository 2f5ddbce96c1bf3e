"""A JSON object, or an array of them, at the beginning of a line (Llama 3.1 and 3.2 write so, with `;` between)."""

from __future__ import annotations

import re

from proxy.emulation.forms.base import Form, Found, Words, Written, rest_unless_closed
from proxy.emulation.forms.envelope import read_calls
from proxy.emulation.forms.tool_call import CLOSING
from proxy.emulation.reader import SPACE, Reader, Step

_BLANKS = re.compile(r"[ \t]*")
_AFTER = ("", "\n", "\r", "{", "[", "<", "`")
"""What may come behind a call on its line; anything else makes it part of a sentence."""
_SEPARATORS = (";", ",")


def _read(reader: Reader, names: Words) -> Step[Found | None]:
    opening = reader.kept
    reader.unread(opening)
    reader.mark()
    found: tuple[Written, ...] = ()
    while True:
        calls = yield from read_calls(reader, names)
        if not calls:
            # Nothing tells the beginning of an object from ordinary text before there is a name.
            return None
        found += calls
        if not calls[-1].closed:
            return Found(found)
        end = reader.offset
        following = yield from reader.run(_BLANKS)
        if following in _SEPARATORS:
            reader.skip()
            following = yield from reader.run(SPACE)
            if following != "{":
                return Found(found, reader.kept[end:])
        elif following != "{":
            if following not in _AFTER:
                return None
            # A closing tag is left over where the backend swallowed the opening one, a token of its own.
            return Found(found, (yield from rest_unless_closed(reader, CLOSING, end)))


BARE = Form("bare", ("{", "["), _read, at_line_start=True)
