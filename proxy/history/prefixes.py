"""What was made of histories before, found again by how they begin: clients send the whole of them with every turn.

Messages are compared with those of the last time, not hashed: a history of 400 kB in 0.1 ms.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from proxy.neutral.weight import length_of_texts
from proxy.wire.jsontext import dumps

T = TypeVar("T")

LEAST = 12
"""Messages from which a history is remembered: it costs as much as going through so many."""
BRANCHES = 4
"""Histories kept of those that begin with the same message."""
_WHOLE_KEY = 4096
"""Characters up to which a text stands for itself in a key."""
_PER_MESSAGE = 500
"""Bytes that a message takes beside its texts, about."""
_DEPTH = 12
"""Levels of nesting up to which messages are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Known(Generic[T]):
    """A history, and what was made of it."""

    messages: Sequence[Any]
    value: T
    odd: Mapping[int, bytes]
    """The JSON of those messages in which there is more than text: to Python 1 is the same as true."""
    size: float
    """Bytes, about."""

    def common(self, messages: Sequence[Any]) -> int:
        """How many of `messages` begin as this history does."""
        same = min(len(self.messages), len(messages))
        if self.messages[:same] != messages[:same]:
            pairs = zip(self.messages, messages, strict=False)
            same = next(at for at, (mine, theirs) in enumerate(pairs) if mine != theirs)
        return next((at for at, odd in self.odd.items() if at < same and dumps(messages[at]) != odd), same)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A history, and the one known that has most messages in common with it."""

    group: Hashable
    messages: Sequence[Any]
    known: Known[T] | None
    common: int

    @property
    def value(self) -> T | None:
        """What was made of the one that is known."""
        return None if self.known is None else self.known.value

    @property
    def shared(self) -> Sequence[Any]:
        """The messages that are known, as the very objects that came first."""
        return () if self.known is None else self.known.messages[: self.common]

    @property
    def new(self) -> Sequence[Any]:
        """The messages that are not."""
        return self.messages[self.common :]

    def grown(self, value: T, limit: float = math.inf, *, each: int = _PER_MESSAGE) -> Known[T] | None:
        """What is known from now on, if this was made of the history; None if that is more than `limit` bytes.

        `each`: bytes that a message takes beside its texts.
        """
        known, common, new = self.known, self.common, self.new
        if known is not None and value is known.value and common == len(known.messages) == len(self.messages):
            return known
        texts = [*map(_texts, new)]
        others = {at: message for at, message in enumerate(new) if texts[at] is None}
        size: float = sum(filter(None, texts)) + each * len(new)
        size += sum(map(_size, others.values()))
        size += known.size * common / len(known.messages) if known is not None else 0
        if not self.messages or size > limit or size == math.inf:
            return None
        odd = {at: data for at, data in known.odd.items() if at < common} if known is not None else {}
        odd |= {common + at: dumps(message) for at, message in others.items() if not _is_text(message)}
        return Known([*self.shared, *new], value, odd, size)


class Prefixes(Generic[T]):
    """Values by histories, bounded in bytes; the least recently used go first. What is kept must not be changed in place.

    To be used from one thread. What takes long for a long history is a found one's own, and may be done in another.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._bytes = 0.0
        self._groups: OrderedDict[Hashable, list[Known[T]]] = OrderedDict()

    def longest(self, scope: Hashable, messages: Sequence[Any]) -> Found[T]:
        """Find what is known of a history; `scope` is all else that the values depend on."""
        group = (scope, _head(messages[0])) if messages else ()
        found, most = None, 0
        for known in self._groups.get(group, ()):
            if (common := known.common(messages)) > most:
                found, most = known, common
            if common == len(messages):
                break
        return Found(group, messages, found, most)

    def keep(self, found: Found[T], grown: Known[T] | None) -> None:
        """Remember what has grown out of what was found, in its place if it goes on with all of it."""
        if grown is None or grown.size > self.limit:
            return
        known, branches = found.known, self._groups.setdefault(found.group, [])
        self._groups.move_to_end(found.group)
        if known is not None and known in branches and found.common == len(known.messages):
            branches.remove(known)
            self._bytes -= known.size
        branches.insert(0, grown)
        self._bytes += grown.size
        if len(branches) > BRANCHES:
            self._bytes -= branches.pop().size
        while self._bytes > self.limit:
            _, dropped = self._groups.popitem(last=False)
            self._bytes -= sum(branch.size for branch in dropped)


def _texts(message: Any) -> int | None:
    """Characters of a message in which there are texts and nothing else; None for any other."""
    return length_of_texts(message.values()) if isinstance(message, dict) else None


def _size(value: Any, depth: int = _DEPTH) -> float:
    """Characters of its strings; without end if it is nested too deeply."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return 8
    return 16 + sum(_size(part, depth - 1) for part in value) if depth else math.inf


def _is_text(value: Any) -> bool:
    """Whether it holds nothing but texts, of which the same are the same."""
    if isinstance(value, dict):
        return all(map(_is_text, value.values()))
    return all(map(_is_text, value)) if isinstance(value, list) else value is None or isinstance(value, str)


def _head(message: Any) -> Hashable:
    """Something that histories of one conversation have in common, and others rarely."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    if not isinstance(content, str):
        return None
    if len(content) <= _WHOLE_KEY:
        return content
    return len(content), content[:256], content[-256:]
