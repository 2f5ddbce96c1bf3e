"""A quoted line in the reasoning, which clients fold away."""

from __future__ import annotations

from proxy.core import sse
from proxy.core.status.base import Notice, quoted
from proxy.core.stream.answer import Identity


def reasoning_form(notice: Notice, identity: Identity) -> bytes:
    """One reasoning delta."""
    return sse.encode(identity.chunk({"reasoning_content": quoted(notice)}))
