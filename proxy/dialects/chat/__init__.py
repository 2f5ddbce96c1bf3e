"""Chat completions: the dialect of most clients, and the one in which every backend is spoken to."""

from __future__ import annotations

from proxy.dialects.chat.reading import ChatReader
from proxy.dialects.chat.writing import ChatWriter

UPSTREAM_PATH = "/v1/chat/completions"
"""Where a backend takes requests."""


class Chat:
    """Answers clients in chunks of chat completions."""

    paths: tuple[str, ...] = (UPSTREAM_PATH,)

    def writer(self) -> ChatWriter:
        """For one answer."""
        return ChatWriter()


__all__ = ["UPSTREAM_PATH", "Chat", "ChatReader", "ChatWriter"]
