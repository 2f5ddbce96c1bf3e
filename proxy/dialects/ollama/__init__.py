"""Ollama's `/api/chat`, in which its clients speak, in front of any backend."""

from __future__ import annotations

from typing import Any

from proxy.dialects.ollama.request import read_chat
from proxy.dialects.ollama.writing import ChatLines, refused, told
from proxy.errors import ClientError
from proxy.neutral.request import Request


class OllamaChat:
    """Reads requests, and answers them in lines or whole."""

    name = "ollama"
    paths: tuple[str, ...] = ("/api/chat",)
    counts: tuple[str, ...] = ()
    parses_calls = True

    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request.

        Raises:
            BadRequest: it is malformed.
            NotManaged: only Ollama itself can answer it.
        """
        del wire
        return read_chat(body)

    def read_to_count(self, body: bytes) -> Request:
        """As any other: Ollama has no path that counts."""
        return read_chat(body)

    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        """By the name that answers have for it."""
        del before
        return {"prompt_eval_count": tokens}

    def answer_id(self, unique: str) -> str:
        """Answers have none."""
        return unique

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """Ollama's error object."""
        return told(error.body()["error"])

    def refused(self, body: bytes) -> bytes:
        """A backend's error in Ollama's shape; what is no JSON stays as it came."""
        return refused(body)

    def writer(self, request: Request, unique: str) -> ChatLines:
        """For one answer."""
        del unique
        return ChatLines(request.model)


__all__ = ["OllamaChat"]
