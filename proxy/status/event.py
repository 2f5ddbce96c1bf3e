"""Open WebUI's own status event, riding on a piece with an empty text (Open WebUI 0.12).

Open WebUI shows it above the answer and never sends it back; other clients see an empty delta.
"""

from __future__ import annotations

from proxy.neutral.piece import Piece
from proxy.status.base import Notice


def event_form(notice: Notice) -> Piece:
    """One piece that carries the notice beside its empty text."""
    return Piece(event={"type": "status", "data": {"description": notice.text, "done": notice.done}})
