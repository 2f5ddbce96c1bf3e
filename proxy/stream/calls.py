"""Tool calls put together from their pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from proxy.core.jsontext import loads
from proxy.core.piece import CallPart, Piece, calls_finish
from proxy.stream.events import Correct


class CallReader(Protocol):
    """Reads calls that a model writes as text in one attempt: pieces in, pieces out."""

    @property
    def unseen(self) -> int:
        """Tokens that were generated and are in no piece yet: the beginning of what may be a call."""
        ...

    @property
    def holding(self) -> bool:
        """Return whether the next piece has to be read, whatever it says."""
        ...

    @property
    def suspects(self) -> re.Pattern[str] | None:
        """Return what in a text has to be read where nothing else has to; None: nothing."""
        ...

    def missed(self, text: str) -> None:
        """Return what was said without having been read, since it held nothing of that kind; before what is fed next."""
        ...

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """Return what may be said now."""
        ...

    def close(self) -> Sequence[Piece]:
        """Return what is left at the end of an attempt, but for what has to be corrected."""
        ...

    def correction(self) -> Correct | None:
        """Return what has to be corrected in the attempt."""
        ...

    def give_up(self) -> Sequence[Piece]:
        """Return what would have been corrected, as it was written, and all that came after it."""
        ...


class CallCollector:
    """Collects the calls of one answer, as a whole message would hold them."""

    def __init__(self) -> None:
        self._calls: list[CallPart] = []
        self._places: dict[tuple[int, int | None, bool], int] = {}

    def add(self, parts: Iterable[CallPart], choice: int = 0) -> None:
        """Take in what one frame says of those of a choice.

        Pieces belong to a call by its index; where that is always the same, a new id is a new call (Ollama).
        """
        for part in parts:
            place = (choice, part.index, part.legacy)
            call = self._calls[self._places[place]] if place in self._places else None
            if call is None or (part.id and part.id != call.id and call.id):
                self._places[place] = len(self._calls)
                self._calls.append(part)
            else:
                self._calls[self._places[place]] = replace(
                    call, id=call.id or part.id, name=call.name or part.name, arguments=call.arguments + part.arguments
                )

    @property
    def count(self) -> int:
        """Return how many there are, but for the one of the older form."""
        return sum(not call.legacy for call in self._calls)

    @property
    def finish(self) -> str:
        """The finish reason of an answer that ends in them."""
        return calls_finish(legacy=not self.count)

    @property
    def callable(self) -> bool:
        """Return whether each of them has a name, and arguments that are whole: JSON, or none at all."""
        return all(call.name and (not call.arguments.strip() or _is_json(call.arguments)) for call in self._calls)

    @property
    def whole(self) -> tuple[CallPart, ...]:
        """The calls, put together; one of the older form only where it is alone."""
        return tuple(call for call in self._calls if not call.legacy) or tuple(self._calls)


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True
