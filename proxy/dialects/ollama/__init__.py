"""Ollama's own API, in which its clients speak: `/api/chat` and `/api/generate`, in front of any backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.dialects.ollama.request import read_chat, read_generate
from proxy.dialects.ollama.writing import ChatLines, GenerateLines, refused, told
from proxy.errors import ClientError
from proxy.neutral.request import Request


class OllamaDialect:
    """Reads the requests of one path, and answers them in lines or whole."""

    counts: tuple[str, ...] = ()
    parses_calls = True

    def __init__(self, path: str, read: Callable[[bytes], Request], lines: type[ChatLines]) -> None:
        """`read` reads a body, `lines` writes the answer."""
        self.name = f"ollama{path.removeprefix('/api').replace('/', '-')}"
        self.paths: tuple[str, ...] = (path,)
        self._read = read
        self._lines = lines

    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request.

        Raises:
            BadRequest: it is malformed.
            NotManaged: only Ollama itself can answer it.
        """
        del wire
        return self._read(body)

    def read_to_count(self, body: bytes) -> Request:
        """As any other: Ollama has no path that counts."""
        return self._read(body)

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
        return self._lines(request.model)


OLLAMA = (
    OllamaDialect("/api/chat", read_chat, ChatLines),
    OllamaDialect("/api/generate", read_generate, GenerateLines),
)

__all__ = ["OLLAMA", "OllamaDialect"]
