"""Chat completions: the dialect of most clients, and the one in which every backend is spoken to."""

from __future__ import annotations

from typing_extensions import override

from proxy.core.dialect import Dialect
from proxy.core.request import Request
from proxy.dialects.chat.reading import ChatReader
from proxy.dialects.chat.request import read
from proxy.dialects.chat.writing import ChatWriter, completion

UPSTREAM_PATH = b"/v1/chat/completions"
"""Where every backend takes requests."""


class Chat(Dialect):
    """Reads requests for chat completions, and answers them in chunks or whole."""

    name = "chat"
    paths: tuple[str, ...] = (UPSTREAM_PATH.decode(),)

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        return read(body, wire)

    @override
    def answer_id(self, unique: str) -> str:
        return f"chatcmpl-{unique}"

    @override
    def writer(self, request: Request, unique: str) -> ChatWriter:
        """Return one that needs neither: chunks do not depend on the request, and keep the backend's ids."""
        del request, unique
        return ChatWriter()


__all__ = ["UPSTREAM_PATH", "Chat", "ChatReader", "ChatWriter", "completion"]
