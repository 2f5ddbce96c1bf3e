"""Headers as they are on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from proxy.wire.memo import Memo

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


class Remembered(Memo[tuple[bytes, bytes], T]):
    """What is made of a header, by the header: nearly all of what a client sends comes again with its next request.

    It holds credentials, so it belongs to whoever may see them.
    """

    def __init__(self, make: Callable[[bytes, bytes], T]) -> None:
        super().__init__(lambda header: make(*header), most=MOST, longest=LONGEST, size=_bytes_of)


def _bytes_of(header: tuple[bytes, bytes]) -> int:
    name, value = header
    return len(name) + len(value)
