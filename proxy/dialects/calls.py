"""What the dialects share of tool calls: which pieces of a stream belong to one."""

from __future__ import annotations

from proxy.neutral.piece import CallPart
from proxy.wire.jsontext import loads


class Numbering:
    """Numbers the calls of an answer in the order in which they begin."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        """Of the calls, as far as they have any."""
        self._numbers: dict[int, int] = {}
        """By the backend's own index, the latest call that had it."""

    def take(self, part: CallPart) -> tuple[int, bool]:
        """The number of the call that a piece belongs to, and whether it begins that.

        A piece that is not numbered (Ollama, and calls that were read off text) begins one if it names a function. Where
        the index is always the same, a new id is a new call (older Ollama, Gemini).
        """
        if part.index is None:
            number = None if part.name or not self._ids else len(self._ids) - 1
        else:
            number = self._numbers.get(part.index)
        if number is not None and not (part.id and self._ids[number] not in ("", part.id)):
            self._ids[number] = self._ids[number] or part.id
            return number, False
        self._ids.append(part.id)
        if part.index is not None:
            self._numbers[part.index] = len(self._ids) - 1
        return len(self._ids) - 1, True


def is_whole(written: str) -> bool:
    """Whether the arguments of a call may be all of them: none, or JSON."""
    if not written.strip():
        return True
    try:
        loads(written)
    except ValueError:
        return False
    return True
