"""Ollama's `/api/chat`, in which its clients speak, in front of any backend."""

from __future__ import annotations

from proxy.core.dialect import Dialect
from proxy.dialects.ollama.client import ChatLines, error_of, read_chat

OLLAMA = Dialect(name="ollama", path="/api/chat", read=read_chat, writer=ChatLines, error=error_of, parses_calls=True)
