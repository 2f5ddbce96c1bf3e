"""Headers as they are on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

MOST = 256
"""Headers that are remembered."""
LONGEST = 512
"""Bytes of one that is."""
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names, in lower case where they were read or are sent to a backend, and values."""


def joined(headers: Headers) -> dict[bytes, bytes]:
    """Headers by name; those of one name are a list (RFC 9110, section 5.3)."""
    made: dict[bytes, bytes] = {}
    for name, value in headers:
        made[name] = value if name not in made else made[name] + b", " + value
    return made


class Remembered(dict[tuple[bytes, bytes], T]):
    """What is made of a header, by the header: nearly all of what a client sends comes again with its next request.

    Look it up with `[]`, which makes what is not known yet. It holds credentials, so it belongs to whoever may see them.
    """

    def __init__(self, make: Callable[[bytes, bytes], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, header: tuple[bytes, bytes]) -> T:
        name, value = header
        made = self._make(name, value)
        if len(name) + len(value) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[header] = made
        return made
