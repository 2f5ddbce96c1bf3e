"""Writer of answers as a Message: in one body, or as the events of a stream.

Events and fields: Anthropic API reference, "Streaming Messages" (2026), and PyPI `anthropic` 2.12.0, `types/`.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from proxy.core.piece import Identity, arguments_of, as_count
from proxy.core.request import COMPACTION, Cleared
from proxy.dialects.bodies import pick, token_counts
from proxy.dialects.messages.request import CLEAR_RESULTS, CLEAR_THOUGHTS
from proxy.dialects.translator import ContentBlock, Translator, event

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Type of delta by kind of block, and the delta's field for text."""
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's types of errors by HTTP status."""


class MessagesWriter(Translator):
    """Writes the events of one answer: the start of a message, its content blocks one after another, and its end."""

    call_prefix = "toolu"

    @override
    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        return event("ping")

    @override
    def _begin(self, prompt_tokens: int) -> list[bytes]:
        return [event("message_start", message=self._message({"prompt_tokens": prompt_tokens}))]

    @override
    def _opened(self, block: ContentBlock) -> list[bytes]:
        return [event("content_block_start", index=block.index, content_block=self._content(block, ""))]

    @override
    def _delta(self, block: ContentBlock, text: str) -> bytes:
        if block.kind == COMPACTION:
            delta = {**self._content(block, text), "type": "compaction_delta"}
        else:
            kind, name = _DELTAS[block.kind]
            delta = {"type": kind, name: text}
        return event("content_block_delta", index=block.index, delta=delta)

    @override
    def _closed(self, block: ContentBlock) -> list[bytes]:
        delta = {"type": "signature_delta", "signature": block.signature}
        signed = [event("content_block_delta", index=block.index, delta=delta)] if block.signature else []
        return [*signed, event("content_block_stop", index=block.index)]

    @override
    def _ended(self) -> list[bytes]:
        return [event("message_delta", delta=self._reason(), **self._report()), event("message_stop")]

    @override
    def _failed(self, error: Any) -> bytes:
        return event("error", error=error_body(error)["error"])

    @override
    def _answer(self) -> dict[str, Any]:
        content = [self._content(block, block.text) for block in self._blocks]
        return {**self._message(self._usage), "content": content, **self._reason(), **self._report()}

    def _content(self, block: ContentBlock, text: str) -> dict[str, Any]:
        """Return a content block with this text, or these arguments."""
        if block.kind == "text":
            return {"type": "text", "text": text, "citations": None}
        if block.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": block.signature}
        if block.kind == "call":
            call = {"type": "tool_use", "id": self._call_id(block), "name": block.name, "input": arguments_of(text)}
            return {**call, "caller": {"type": "direct"}}
        compaction = self._managed.sealed_compaction
        seal = compaction.seal if compaction is not None and text else None
        return {"type": COMPACTION, "content": text or None, "encrypted_content": seal}

    def _reason(self) -> dict[str, Any]:
        """Return why the answer ended, and the stop sequence if the backend reports it."""
        reason = _REASONS.get(self._finish or "", "end_turn")
        if self._managed.ended:
            reason = COMPACTION
        elif self._calls and reason == "end_turn":
            reason = "tool_use"
        elif self._stopped and reason == "end_turn":
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stopped}
        return {"stop_reason": reason, "stop_sequence": None}

    def _report(self) -> dict[str, Any]:
        """Return the usage, and the results of the client's edits and compaction."""
        usage = usage_of(self._usage)
        if self._request.compaction is not None:
            usage["iterations"] = self._iterations(usage)
        if not self._request.form.get("context_management"):
            return {"usage": usage}
        return {"usage": usage, "context_management": {"applied_edits": list(map(_applied, self._managed.cleared))}}

    def _iterations(self, usage: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the usage of each step: of the compaction, which the answer's usage does not include, and of the answer."""
        counted = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        answered = {name: usage[name] for name in (*counted, "cache_creation")}
        spent = {**dict.fromkeys(counted, 0), "cache_creation": answered["cache_creation"]}
        spent["input_tokens"], spent["output_tokens"] = self._managed.spent
        compacting = [{"type": COMPACTION, **spent}] if self._managed.sealed_compaction is not None else []
        return [*compacting, *([] if self._managed.ended else [{"type": "message", **answered}])]

    def _message(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._unique}",
            "type": "message",
            "role": "assistant",
            "model": self._identity.model or self._request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage_of(usage),
        }


def _applied(cleared: Cleared) -> dict[str, Any]:
    tokens = {"cleared_input_tokens": cleared.tokens}
    if cleared.what == "thoughts":
        return {"type": CLEAR_THOUGHTS, "cleared_thinking_turns": cleared.number, **tokens}
    return {"type": CLEAR_RESULTS, "cleared_tool_uses": cleared.number, **tokens}


def error_body(error: Any) -> dict[str, Any]:
    """Return an error in Anthropic's form; its `code` may be an HTTP status.

    If the prompt is too long, the message begins with the words at which Claude Code (2.1) compacts.
    """
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code, known = as_count(fields.get("code")), str(fields.get("type"))
    kind = _KINDS.get(code) or ("invalid_request_error" if 400 <= code < 500 else "")
    kind = kind or (known if known in _KINDS.values() else "api_error")
    message = str(fields.get("message") or "The backend failed.")
    tokens, window = as_count(fields.get("n_prompt_tokens")), as_count(fields.get("n_ctx"))
    if tokens and window:
        # Claude Code reads both figures from this wording and compacts; an error in OpenAI's form ends its session.
        message = f"prompt is too long: {tokens} tokens > {window} maximum. {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage as Anthropic counts it: input tokens do not include cached ones."""
    prompt, cached, completion, thinking = token_counts(usage)
    counts: dict[str, Any] = {
        "input_tokens": max(0, prompt - cached),
        "output_tokens": completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": min(cached, prompt),
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "output_tokens_details": {"thinking_tokens": thinking} if thinking else None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }
    return counts | pick(usage, ("spillway",))
