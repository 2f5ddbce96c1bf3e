"""How much there is to go through in a part of a request, looked at no further than it takes to say that it is much."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

HEAVY = 64 * 1024
"""Weight from which something is not gone through on the loop: some milliseconds, 50 at the very worst."""
_TEXT = {str}
_EACH = 64
"""What a value weighs besides its characters."""


def is_heavy(value: Any, limit: int = HEAVY) -> bool:
    """Whether a JSON value weighs more than `limit`: a character of a string is 1, a value in a list, a tuple or an object 64."""
    left, stack = limit, [value]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is str:
            left -= len(value)
        elif kind is dict or kind is list or kind is tuple:
            left -= _EACH * len(value)
            if left < 0:
                return True
            parts = value.values() if kind is dict else value
            if (length := length_of_texts(parts)) is None:
                stack.extend(parts)
            else:
                left -= length
        if left < 0:
            return True
    return False


def length_of_texts(values: Collection[Any]) -> int | None:
    """Characters of values that are texts and nothing else, as those of most messages; None for any others."""
    return sum(map(len, values)) if {*map(type, values)} == _TEXT else None
