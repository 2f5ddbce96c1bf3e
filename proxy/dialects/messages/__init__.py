"""Anthropic's Messages, in which Claude Code and Anthropic's SDKs speak."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError
from proxy.core.jsontext import dumps
from proxy.core.request import Request
from proxy.dialects.bodies import error_in
from proxy.dialects.messages.request import read
from proxy.dialects.messages.tools import changed_in
from proxy.dialects.messages.writing import MessagesWriter, error_of


class Messages(Dialect):
    """Reads requests for messages, and answers them in events or whole."""

    name = "messages"
    parses_calls = True
    paths: tuple[str, ...] = ("/v1/messages",)
    counts: tuple[str, ...] = ("/v1/messages/count_tokens",)

    @override
    def read(self, body: bytes, wire: bytes) -> Request:
        return read(body)

    @override
    def read_to_count(self, body: bytes) -> Request:
        return read(body, bounded=False)

    @override
    def counted(self, tokens: int, before: int | None) -> dict[str, Any]:
        original = {} if before is None else {"context_management": {"original_input_tokens": before}}
        return {"input_tokens": tokens, **original}

    @override
    def answer_id(self, unique: str) -> str:
        return f"msg_{unique}"

    @override
    def refusal(self, error: ClientError) -> dict[str, Any]:
        return {"type": "error", **error_of(error.body()["error"], error.status)}

    @override
    def refused(self, body: bytes) -> bytes:
        error = error_in(body)
        return body if error is None else dumps({"type": "error", **error_of(error)})

    @override
    def writer(self, request: Request, unique: str) -> MessagesWriter:
        return MessagesWriter(
            self.answer_id(unique),
            request.model,
            edits=bool(request.form.get("context_management")),
            tool_changes=None if request.compaction is None else changed_in(request.form),
            silent=request.form.get("max_tokens") == 0,
        )


__all__ = ["Messages"]
