"""Headers as they are on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names, in lower case where they were read or are sent to a backend, and values."""


def joined(headers: Headers) -> dict[bytes, bytes]:
    """Headers by name; those of one name are a list (RFC 9110, section 5.3)."""
    merged: dict[bytes, bytes] = {}
    for name, value in headers:
        merged[name] = value if name not in merged else merged[name] + b", " + value
    return merged
