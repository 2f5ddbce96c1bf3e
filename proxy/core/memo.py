"""Bounded cache of values derived from what others send: they send most of it again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Cache of derived values, by key. Look up with `[]`, which computes what is missing.

    Whoever sends the keys must not fill the memory: neither with many, nor with long ones.
    """

    def __init__(self, make: Callable[[K], V], *, most: int, longest: int, size: Callable[[Any], int] = len) -> None:
        """Make it.

        Args:
            make: makes the value; what it raises comes out of the look, and is not remembered.
            most: keys that are remembered; when there are more, all are forgotten.
            longest: size of a key up to which it is.
            size: of a key; asked of new ones only.
        """
        super().__init__()
        self._make, self._size = make, size
        self._most, self._longest = most, longest

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if self._size(key) <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[key] = value
        return value
