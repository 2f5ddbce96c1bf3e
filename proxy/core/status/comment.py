"""A comment line, which every client ignores and a person with curl sees."""

from __future__ import annotations

from proxy.core import sse
from proxy.core.status.base import Notice
from proxy.core.stream.answer import Identity


def comment_form(notice: Notice, identity: Identity) -> bytes:
    """One comment frame."""
    del identity
    return sse.comment(notice.text)
