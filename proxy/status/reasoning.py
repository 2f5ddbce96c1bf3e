"""A quoted line in the reasoning, which clients fold away."""

from __future__ import annotations

from proxy.neutral.piece import Piece
from proxy.status.base import Notice, quoted


def reasoning_form(notice: Notice) -> Piece:
    """One reasoning delta."""
    return Piece(thought=quoted(notice))
