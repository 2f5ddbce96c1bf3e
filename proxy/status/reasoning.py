"""A quoted line in the reasoning, which clients fold away."""

from __future__ import annotations

from proxy.answer.answer import Identity
from proxy.status.base import Notice, quoted
from proxy.wire import sse


def reasoning_form(notice: Notice, identity: Identity) -> bytes:
    """One reasoning delta."""
    return sse.encode(identity.chunk({"reasoning_content": quoted(notice)}))
