"""A comment line, which every client ignores and a person with curl sees."""

from __future__ import annotations

from proxy.neutral.piece import Piece
from proxy.status.base import Notice


def comment_form(notice: Notice) -> Piece:
    """One comment."""
    return Piece(comment=notice.text)
