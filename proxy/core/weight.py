"""Weight of a part of a request, measured no further than it takes to know that it is heavy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

HEAVY = 64 * 1024
"""Weight from which something is not gone through on the loop: some milliseconds, 50 at the very worst."""
_TEXT = {str}
_EACH = 64
"""Weight of a value besides its characters."""


def is_heavy(value: Any, limit: int = HEAVY) -> bool:
    """Return whether a JSON value weighs more than `limit`: 1 per character, 64 per value in a list, tuple or object."""
    remaining, stack = limit, [value]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is str:
            remaining -= len(value)
        elif kind is dict or kind is list or kind is tuple:
            remaining -= _EACH * len(value)
            if remaining < 0:
                return True
            parts = value.values() if kind is dict else value
            if (length := length_of_texts(parts)) is None:
                stack.extend(parts)
            else:
                remaining -= length
        if remaining < 0:
            return True
    return False


def length_of_texts(values: Collection[Any]) -> int | None:
    """Characters of values that are texts and nothing else, as those of most messages; None for any others."""
    return sum(map(len, values)) if {*map(type, values)} == _TEXT else None
