"""Chat completions: the dialect of most clients, and the one in which every backend is spoken to."""

from __future__ import annotations

from typing import Any

from proxy.dialects.chat.reading import ChatReader
from proxy.dialects.chat.request import read
from proxy.dialects.chat.writing import ChatWriter, whole_answer
from proxy.errors import ClientError
from proxy.neutral.request import Request

UPSTREAM_PATH = b"/v1/chat/completions"
"""Where every backend takes requests."""


class Chat:
    """Reads requests for chat completions, and answers them in chunks or whole."""

    name = "chat"
    parses_calls = False
    paths: tuple[str, ...] = (UPSTREAM_PATH.decode(),)

    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request.

        Raises:
            BadRequest: it is malformed.
        """
        return read(body, wire)

    counts: tuple[str, ...] = ()

    def read_to_count(self, body: bytes) -> Request:
        """As any other: only llama-server has such a path, and answers there itself."""
        return read(body)

    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        """As llama-server (b11549) says it."""
        del before
        return {"input_tokens": tokens}

    def answer_id(self, unique: str) -> str:
        """As OpenAI's look."""
        return f"chatcmpl-{unique}"

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error.body()

    def refused(self, body: bytes) -> bytes:
        """As it came."""
        return body

    def writer(self, request: Request, unique: str) -> ChatWriter:
        """For one answer; its chunks do not depend on what was asked, and keep the backend's ids."""
        del request, unique
        return ChatWriter()


__all__ = ["UPSTREAM_PATH", "Chat", "ChatReader", "ChatWriter", "whole_answer"]
