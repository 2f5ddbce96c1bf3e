"""A code block that holds nothing but calls, marked as JSON, as a tool call, or not at all."""

from __future__ import annotations

import re

from proxy.emulation.forms.base import Form, Found, Words, Written
from proxy.emulation.forms.tagged import read_several, reads_json
from proxy.emulation.forms.tool_call import CLOSING, OPENING
from proxy.emulation.reader import SPACE, Reader, Step

FENCE = "```"
_tagged = reads_json(CLOSING)
_LANGUAGES = Words({"", "json", "tool", "tool_call", "tool_calls", "function_call", "xml"})
_BLANKS = re.compile(r"[ \t]*")
_TICKS = re.compile(r"`*")
_LETTERS = re.compile(r"[\w+#-]")


def _read(reader: Reader, names: Words) -> Step[Found | None]:
    yield from reader.run(_TICKS)
    language = ""
    while _LETTERS.match(character := (yield from reader.peek())):
        language += character
        if not _LANGUAGES.may_become(language.lower()):
            return None
        reader.skip()
    following = yield from reader.run(_BLANKS)
    if language.lower() not in _LANGUAGES or not following or following not in "\r\n{[<":
        return None
    found = yield from _contents(reader, names)
    if found is None or not found.calls:
        return None
    # Models stop behind the call and leave the block open.
    ended = not (yield from reader.peek())
    start = reader.offset
    yield from reader.run(_TICKS)
    return Found(found.calls) if ended or reader.offset - start >= len(FENCE) else None


def _contents(reader: Reader, names: Words) -> Step[Found | None]:
    """Calls as JSON, or in the tags that are taught, which models put into a block as well."""
    if (yield from reader.run(SPACE)) != "<":
        return (yield from read_several(reader, names))
    calls: tuple[Written, ...] = ()
    while (yield from reader.run(SPACE)) == "<":
        found = (yield from _tagged(reader, names)) if (yield from reader.literal(OPENING)) else None
        if found is None or found.rest.strip():
            return None
        calls += found.calls
    return Found(calls)


FENCED = Form("fenced", (FENCE,), _read)
