"""The wire forms of a conversation: read into the neutral form at the edge, and written there again.

A new one for clients is one folder and one line here.
"""

from __future__ import annotations

from proxy.core.dialect import Dialect, Reader
from proxy.dialects.chat import Chat, ChatReader
from proxy.dialects.messages import Messages
from proxy.dialects.ollama import OllamaChat
from proxy.dialects.responses import CompactedResponses, Responses

CHAT = Chat()
_ALL: tuple[Dialect, ...] = (CHAT, Messages(), Responses(), CompactedResponses(), OllamaChat())
DIALECTS: dict[str, Dialect] = {path: dialect for dialect in _ALL for path in dialect.paths}
"""By the paths that they own."""
UPSTREAM: Reader = ChatReader()
"""Reads what backends send: all of them are spoken to in chat completions."""

__all__ = ["CHAT", "DIALECTS", "UPSTREAM"]
