"""What the dialects share of tool calls: which pieces of a stream belong to one."""

from __future__ import annotations

from typing import Any

from proxy.neutral.piece import CallPart
from proxy.wire.jsontext import loads


class Numbering:
    """Numbers the calls of an answer in the order in which they begin."""

    def __init__(self) -> None:
        self.count = 0
        """How many have begun."""

    def take(self, part: CallPart) -> tuple[int, bool]:
        """The number of the call that a piece belongs to, and whether it begins that.

        A piece that is not numbered (Ollama, and calls that were read off text) begins one if it names a function.
        """
        index = part.index
        if index is None:
            index = self.count if part.name or not self.count else self.count - 1
        begins = index >= self.count
        self.count = max(self.count, index + 1)
        return index, begins


def arguments_of(written: str) -> dict[str, Any]:
    """The arguments of a whole call; none where they are no JSON object."""
    try:
        parsed = loads(written)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
