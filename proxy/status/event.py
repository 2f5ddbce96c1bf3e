"""Open WebUI's own status event, riding on a chunk with an empty content delta (Open WebUI 0.12).

Open WebUI shows it above the answer and never sends it back; other clients see an empty delta.
"""

from __future__ import annotations

from proxy.answer.answer import Identity
from proxy.status.base import Notice
from proxy.wire import sse


def event_form(notice: Notice, identity: Identity) -> bytes:
    """One chunk that carries the notice beside its (empty) choice."""
    event = {"type": "status", "data": {"description": notice.text, "done": notice.done}}
    return sse.encode({**identity.chunk({"content": ""}), "event": event})
