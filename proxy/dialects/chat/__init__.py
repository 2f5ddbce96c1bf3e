"""Chat completions: the dialect of most clients, and the one in which every backend is spoken to."""

from __future__ import annotations

from proxy.core.dialect import Dialect
from proxy.core.managing import Managed
from proxy.core.request import Request
from proxy.dialects.chat.request import read
from proxy.dialects.chat.writing import ChatWriter

UPSTREAM_PATH = b"/v1/chat/completions"
"""Where every backend takes requests."""


def _writer(request: Request, unique: str, managed: Managed) -> ChatWriter:
    """Build one that needs none of these: backends are asked in the same dialect, and know of no edits."""
    del request, unique, managed
    return ChatWriter()


CHAT = Dialect(name="chat", path=UPSTREAM_PATH.decode(), read=read, writer=_writer, id_prefix="chatcmpl-")
