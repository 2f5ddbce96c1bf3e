"""Calls that wait for their results: the first of an id or a name is found in the same time, however many wait."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """Values in the order in which they were added, each under a key that others may have too; any JSON is one."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, T] = OrderedDict()
        self._numbers: defaultdict[Any, deque[int]] = defaultdict(deque)
        self._added = 0

    def __iter__(self) -> Iterator[T]:
        return iter(self._values.values())

    def __bool__(self) -> bool:
        return self._added > 0

    def add(self, key: Any, value: T) -> None:
        """Put a value behind those there are."""
        self._values[self._added] = value
        self._numbers[_hashable(key)].append(self._added)
        self._added += 1

    def take(self, key: Any) -> T | None:
        """Take out the first value of that key."""
        numbers = self._numbers.get(_hashable(key), ())
        while numbers:
            if (number := numbers.popleft()) in self._values:
                return self._values.pop(number)
        return None

    def take_first(self) -> T | None:
        """Take out the first value of all."""
        return self._values.popitem(last=False)[1] if self._values else None


def _hashable(key: Any) -> Any:
    return key if key is None or isinstance(key, str) else (repr(key),)
