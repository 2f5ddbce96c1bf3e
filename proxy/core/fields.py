"""A field of a large JSON object, found without making anything of the rest: parsing 20 MB takes half a second in one go.

It is looked for in small steps, so that whoever waits for Python in another thread gets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.core.jsontext import loads

_SLICE = 256 * 1024
"""Bytes that are searched at a time."""
_STEPS = 1_000_000
"""Brackets, and quotation marks, after which the search is given up: about a second."""
_LONGEST = 4096
"""Bytes of a value that is found."""
_STRUCTURE = re.compile(rb'["{}\[\]]')
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]{0,65536}\{")
_COLON = re.compile(rb"[ \t\r\n]{0,1024}:[ \t\r\n]{0,1024}")


@dataclass(frozen=True, slots=True)
class Field:
    """A field whose value is a text, and where in the bytes that stands, with its quotation marks."""

    name: str
    value: str
    start: int
    end: int


def text_field(data: bytes, names: Sequence[str]) -> Field | None:
    """The field of an object that has one of these names, an earlier one rather than a later; None if none is found.

    Of several fields of one name the last, as parsers have it. It need not be JSON throughout.
    """
    opening = _OPENING.match(data)
    if opening is None:
        return None
    best: Field | None = None
    for field in _Scan(data, opening.end()).fields(names):
        if best is None or names.index(field.name) <= names.index(best.name):
            best = field
    return best


class _Scan:
    """A walk over the marks that give JSON its structure."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._left = _STEPS

    def fields(self, names: Sequence[str]) -> Iterator[Field]:
        """Iterate over the members of the object in which the scan starts that have one of these names and a string value."""
        depth, data = 1, self._data
        while depth and self._left > 0 and (mark := self._mark()):
            if mark in b"{[":
                depth += 1
            elif mark in b"}]":
                depth -= 1
            else:
                start = self._at - 1
                self._skip_text()
                if depth == 1 and (name := _text(data[start : self._at][:_LONGEST])) in names:
                    yield from self._value(str(name))

    def _value(self, name: str) -> Iterator[Field]:
        """The value behind a name, if it is one, and a text."""
        colon = _COLON.match(self._data, self._at)
        if colon is None or self._data[colon.end() : colon.end() + 1] != b'"':
            return
        self._at = colon.end() + 1
        self._skip_text()
        if self._at - colon.end() <= _LONGEST:
            value = _text(self._data[colon.end() : self._at])
            if value is not None:
                yield Field(name, value, colon.end(), self._at)

    def _mark(self) -> bytes:
        """The next mark, behind which the walk stands then; nothing at the end."""
        while self._at < len(self._data):
            found = _STRUCTURE.search(self._data, self._at, self._at + _SLICE)
            if found is not None:
                self._at = found.end()
                self._left -= 1
                return found[0]
            self._at += _SLICE
        return b""

    def _skip_text(self) -> None:
        """Go behind the text that the walk stands in."""
        while self._left > 0:
            end = self._data.find(b'"', self._at)
            if end < 0:
                self._at = len(self._data)
                return
            segment = self._data[self._at : end]
            self._at = end + 1
            self._left -= 1
            if (len(segment) - len(segment.rstrip(b"\\"))) % 2 == 0:
                return


def _text(data: bytes) -> str | None:
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
