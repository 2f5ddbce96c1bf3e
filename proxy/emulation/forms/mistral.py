"""`[TOOL_CALLS][{…}]` and `[TOOL_CALLS]NAME[ARGS]{…}`, the latter also without its mark or with an id (Mistral).

The first is that of Mistral's tokenizers up to v7, the second that of v11 and later.
"""

from __future__ import annotations

import re

from proxy.emulation.forms.base import Form, Found, Words, Written
from proxy.emulation.forms.envelope import skip_value
from proxy.emulation.forms.tagged import read_several
from proxy.emulation.reader import SPACE, Reader, Step

_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_ID = re.compile(r"[A-Za-z0-9_-]*")


def _read(reader: Reader, names: Words) -> Step[Found | None]:
    following = yield from reader.run(SPACE)
    if not following:
        return Found(())
    if following in "[{":
        return (yield from read_several(reader, names, marked=True))
    name = ""
    while names.may_become(name + (following := (yield from reader.peek()))) and following:
        name += following
        reader.skip()
    if not following:
        return Found((Written(name, closed=False),)) if name in names else Found(())
    if name not in names or not (yield from _marks(reader)):
        return None
    following = yield from reader.run(SPACE)
    if following and following != "{":
        return None
    start = reader.offset
    closed = bool(following) and (yield from skip_value(reader))
    return Found((Written(name, (start, reader.offset), closed=closed),))


def _marks(reader: Reader) -> Step[bool]:
    """Consume the marks between name and arguments; False if something else is there."""
    while (yield from reader.run(SPACE)) == "[":
        reader.skip()
        mark = _CALL_ID if (yield from reader.peek()) == "C" else _ARGS
        if not (yield from reader.literal(mark[1:])):
            return not (yield from reader.peek())
        if mark == _CALL_ID:
            yield from reader.run(_ID)
    return True


MISTRAL = Form("mistral", ("[TOOL_CALLS]",), _read)
