"""A quoted line inside the answer: seen everywhere, taken out again when the client sends it back."""

from __future__ import annotations

from proxy.neutral.piece import Piece
from proxy.status.base import Notice, quoted


def content_form(notice: Notice) -> Piece:
    """One content delta."""
    return Piece(text=quoted(notice))
