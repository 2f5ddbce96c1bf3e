"""Anthropic's Messages, in which Claude Code and Anthropic's SDKs speak."""

from __future__ import annotations

from typing import Any

from proxy.dialects.bodies import error_in
from proxy.dialects.messages.request import read
from proxy.dialects.messages.tools import changed_in
from proxy.dialects.messages.writing import MessagesWriter, told
from proxy.errors import ClientError
from proxy.neutral.request import Request
from proxy.wire.jsontext import dumps


class Messages:
    """Reads requests for messages, and answers them in events or whole."""

    name = "messages"
    parses_calls = True
    paths: tuple[str, ...] = ("/v1/messages",)

    def read(self, body: bytes, wire: bytes) -> Request:
        """A client's request.

        Raises:
            BadRequest: it is malformed.
        """
        del wire
        return read(body)

    counts: tuple[str, ...] = ("/v1/messages/count_tokens",)

    def read_to_count(self, body: bytes) -> Request:
        """A prompt: no bound on an answer belongs to it.

        Raises:
            BadRequest: it is malformed.
        """
        return read(body, bounded=False)

    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        """As Anthropic says it."""
        original = {} if before is None else {"context_management": {"original_input_tokens": before}}
        return {"input_tokens": tokens, **original}

    def answer_id(self, unique: str) -> str:
        """As Anthropic's look."""
        return f"msg_{unique}"

    def refusal(self, error: ClientError) -> dict[str, Any]:
        """Anthropic's error object."""
        return {"type": "error", **told(error.body()["error"], error.status)}

    def refused(self, body: bytes) -> bytes:
        """A backend's error in Anthropic's shape; what is no JSON stays as it came."""
        error = error_in(body)
        return body if error is None else dumps({"type": "error", **told(error)})

    def writer(self, request: Request, unique: str) -> MessagesWriter:
        """For one answer."""
        return MessagesWriter(
            self.answer_id(unique),
            request.model,
            edits=bool(request.form.get("context_management")),
            tool_changes=None if request.compaction is None else changed_in(request.form),
            silent=request.form.get("max_tokens") == 0,
        )


__all__ = ["Messages"]
