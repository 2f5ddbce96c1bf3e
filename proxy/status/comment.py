"""A comment line, which every client ignores and a person with curl sees."""

from __future__ import annotations

from proxy.answer.answer import Identity
from proxy.status.base import Notice
from proxy.wire import sse


def comment_form(notice: Notice, identity: Identity) -> bytes:
    """One comment frame."""
    del identity
    return sse.comment(notice.text)
