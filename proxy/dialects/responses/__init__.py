"""OpenAI's Responses, in which Codex, the Agents SDK and Vercel's AI SDK speak."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.core.dialect import Dialect
from proxy.core.request import Request
from proxy.dialects.responses.request import read
from proxy.dialects.responses.writing import CompactedWriter, ResponsesWriter


class Responses(Dialect):
    """Reads requests for responses, and answers them in events or whole."""

    name = "responses"
    paths: tuple[str, ...] = ("/v1/responses",)
    counts: tuple[str, ...] = ("/v1/responses/input_tokens",)

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        return read(body)

    @override
    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    @override
    def answer_id(self, unique: str) -> str:
        return f"resp_{unique}"

    @override
    def writer(self, request: Request, unique: str) -> ResponsesWriter:
        return ResponsesWriter(request, unique)


class CompactedResponses(Responses):
    """Requests for a compaction alone, which are answered whole."""

    paths: tuple[str, ...] = ("/v1/responses/compact",)
    counts: tuple[str, ...] = ()

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        return read(body, compacts=True)

    @override
    def writer(self, request: Request, unique: str) -> CompactedWriter:
        return CompactedWriter(request, unique)


__all__ = ["CompactedResponses", "Responses"]
