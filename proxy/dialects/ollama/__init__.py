"""Ollama's `/api/chat`, in which its clients speak, in front of any backend."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError
from proxy.core.jsontext import dumps
from proxy.core.request import Request
from proxy.dialects.bodies import error_in
from proxy.dialects.ollama.request import read_chat
from proxy.dialects.ollama.writing import ChatLines, error_of


class OllamaChat(Dialect):
    """Reads requests, and answers them in lines or whole."""

    name = "ollama"
    paths: tuple[str, ...] = ("/api/chat",)
    parses_calls = True

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        return read_chat(body)

    @override
    def refusal(self, error: ClientError) -> dict[str, Any]:
        return error_of(error.body()["error"])

    @override
    def refused(self, body: bytes) -> bytes:
        error = error_in(body)
        return body if error is None else dumps(error_of(error))

    @override
    def writer(self, request: Request, unique: str) -> ChatLines:
        return ChatLines(request.model)


__all__ = ["OllamaChat"]
