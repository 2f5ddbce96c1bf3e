"""A quoted line inside the answer: seen everywhere, taken out again when the client sends it back."""

from __future__ import annotations

from proxy.answer.answer import Identity
from proxy.status.base import Notice, quoted
from proxy.wire import sse


def content_form(notice: Notice, identity: Identity) -> bytes:
    """One content delta."""
    return sse.encode(identity.chunk({"content": quoted(notice)}))
