"""Tool calls put together from their pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from proxy.answer.events import Correct
from proxy.neutral.piece import CallPart, Piece


class CallReader(Protocol):
    """Reads calls that a model writes as text in one attempt: pieces in, pieces out."""

    @property
    def unseen(self) -> int:
        """Tokens that were generated and are in no piece yet: the beginning of what may be a call."""
        ...

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """What may be said now."""
        ...

    def close(self) -> Sequence[Piece]:
        """What is left at the end of an attempt, but for what has to be corrected."""
        ...

    def correction(self) -> Correct | None:
        """What has to be corrected in the attempt."""
        ...

    def give_up(self) -> Sequence[Piece]:
        """What would have been corrected, as it was written, and all that came after it."""
        ...


class CallCollector:
    """Collects the calls of one answer, as a whole message would hold them."""

    def __init__(self) -> None:
        self._calls: list[CallPart] = []
        self._places: dict[int | None, int] = {}
        self._legacy: CallPart | None = None

    def add(self, parts: Iterable[CallPart]) -> None:
        """Take in what one frame says of them."""
        for part in parts:
            if part.legacy:
                self._legacy = part if self._legacy is None else _joined(self._legacy, part)
            else:
                self._add_call(part)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._calls)

    @property
    def finish(self) -> str:
        """The finish reason of an answer that ends in them."""
        return "tool_calls" if self._calls else "function_call"

    @property
    def whole(self) -> tuple[CallPart, ...]:
        """The calls, put together."""
        if self._calls:
            return tuple(self._calls)
        return () if self._legacy is None else (self._legacy,)

    def _add_call(self, part: CallPart) -> None:
        """Pieces belong to a call by its index; where that is always the same, a new id is a new call (Ollama)."""
        at = self._places.get(part.index)
        if at is None or (part.id and part.id != self._calls[at].id and self._calls[at].id):
            self._places[part.index] = len(self._calls)
            self._calls.append(part)
        else:
            self._calls[at] = _joined(self._calls[at], part)


def _joined(call: CallPart, part: CallPart) -> CallPart:
    return replace(
        call,
        id=call.id or part.id,
        name=call.name or part.name,
        arguments=call.arguments + part.arguments,
    )
