"""A quoted line inside the answer: seen everywhere, taken out again when the client sends it back."""

from __future__ import annotations

from proxy.core import sse
from proxy.core.status.base import Notice, quoted
from proxy.core.stream.answer import Identity


def content_form(notice: Notice, identity: Identity) -> bytes:
    """One content delta."""
    return sse.encode(identity.chunk({"content": quoted(notice)}))
