"""Calls of a tool of Spillway's own in an answer: they are Spillway's to answer, and no client ever sees them.

Models call several tools at a time. What is called first decides: is it the search, that is done first, and the other
calls of the message, of which the client has seen nothing, are left for the model to make once more; is it one of the
client's, that has gone out already, and the search is left out, for the model to make in its next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from proxy.answer.answer import Attempt
from proxy.neutral.piece import CallPart, Piece


class SearchCalls:
    """Tells Spillway's own calls from the client's in one attempt."""

    def __init__(self, name: str) -> None:
        """`name` of Spillway's own tool; empty: there is none."""
        self._name = name
        self._own: set[int | None] = set()

    def begins(self, piece: Piece, attempt: Attempt) -> bool:
        """Whether the calls of an attempt begin with this piece, and with a search."""
        calls = piece.calls
        return bool(self._name and calls and not attempt.calling and calls[0].name == self._name)

    def less(self, piece: Piece) -> Piece:
        """A piece without searches; the same if there is none in it."""
        if not self._name or not piece.calls:
            return piece
        kept = tuple(call for call in piece.calls if not self._is_own(call))
        return piece if len(kept) == len(piece.calls) else with_calls(piece, kept)

    def _is_own(self, call: CallPart) -> bool:
        if call.name:
            (self._own.add if call.name == self._name else self._own.discard)(call.index)
        return call.index in self._own


def with_calls(piece: Piece, kept: tuple[CallPart, ...]) -> Piece:
    """A piece that makes these calls only."""
    return replace(piece, frame=b"", bare=True, calls=kept)


def own(calls: Iterable[CallPart], name: str) -> tuple[CallPart, ...]:
    """The searches among calls."""
    return tuple(call for call in calls if name and call.name == name)
