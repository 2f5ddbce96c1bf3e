"""OpenAI's Responses, in which Codex, the Agents SDK and Vercel's AI SDK speak."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.dialects.responses.compacting import CompactedWriter
from proxy.dialects.responses.request import read
from proxy.dialects.responses.writing import ResponsesWriter
from proxy.errors import ClientError
from proxy.neutral.request import Request


class Responses:
    """Reads requests for responses, and answers them in events or whole."""

    name = "responses"
    parses_calls = False
    paths: tuple[str, ...] = ("/v1/responses",)

    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request.

        Raises:
            BadRequest: it is malformed.
        """
        del wire
        return read(body)

    counts: tuple[str, ...] = ("/v1/responses/input_tokens",)

    def read_to_count(self, body: bytes) -> Request:
        """A prompt.

        Raises:
            BadRequest: it is malformed.
        """
        return read(body)

    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        """As OpenAI says it."""
        del before
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def answer_id(self, unique: str) -> str:
        """As OpenAI's look."""
        return f"resp_{unique}"

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error.body()

    def refused(self, body: bytes) -> bytes:
        """As it came: the same in all of OpenAI's dialects."""
        return body

    def writer(self, request: Request, unique: str) -> ResponsesWriter:
        """For one answer."""
        return ResponsesWriter(request, unique)


class CompactedResponses(Responses):
    """The same requests, asked for a compaction alone."""

    paths: tuple[str, ...] = ("/v1/responses/compact",)
    counts: tuple[str, ...] = ()

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request, which is answered whole.

        Raises:
            BadRequest: it is malformed.
        """
        del wire
        return read(body, compacts=True)

    @override
    def writer(self, request: Request, unique: str) -> CompactedWriter:
        """For one answer."""
        return CompactedWriter(request, unique)


__all__ = ["CompactedResponses", "Responses"]
