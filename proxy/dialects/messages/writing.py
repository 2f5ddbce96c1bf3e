"""Writing an answer as a Message: in one body, or as the events of a stream.

Events and fields: Anthropic API reference, "Streaming Messages" (2026), and PyPI `anthropic` 2.12.0, `types/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from proxy.core.managing import Managed, SealedCompaction
from proxy.core.piece import CallPart, Identity, Piece, arguments_of, whole_number
from proxy.core.request import Request
from proxy.dialects.bodies import dict_in
from proxy.dialects.messages.context import COMPACTION, applied, compaction_block, iterations
from proxy.dialects.translator import Translator, named_event

ID_PREFIX = "msg_"
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CALLER = {"type": "direct"}
_BLANK: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "text", "text": "", "citations": None},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
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
"""HTTP status to what Anthropic calls such an error."""


class MessagesWriter(Translator):
    """Writes the events of one answer: a message that is opened, its content blocks one after the other, its end.

    Blocks do not interleave: the first call is written while it comes, what comes beside or after it at the end.
    """

    media_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        super().__init__(managed, silent="length" if request.form.get("max_tokens") == 0 else None)
        self._id = ID_PREFIX + unique
        self._model = request.model
        self._edits = bool(request.form.get("context_management"))
        self._compacts = request.compaction is not None
        self._index = -1
        """Of the newest block."""
        self._later: list[tuple[str, str]] = []
        """Kind and text of what came after the first call began."""

    @override
    def _failed(self, error: Any) -> bytes:
        return named_event("error", error_body(error))

    @override
    def _begin(self, identity: Identity, prompt_tokens: int) -> list[bytes]:
        return [named_event("message_start", {"message": self._message(identity, {"prompt_tokens": prompt_tokens})})]

    @override
    def _compaction(self, compaction: SealedCompaction) -> list[bytes]:
        block = compaction_block(compaction)
        opened = self._start({**block, "content": None, "encrypted_content": None})
        return [opened, self._grown({**block, "type": f"{COMPACTION}_delta"}), *self._closed(COMPACTION)]

    @override
    def _text(self, kind: str, text: str) -> list[bytes]:
        if self._block == "tool_use":
            self._later.append((kind, text))
            return []
        return super()._text(kind, text)

    @override
    def _open(self, kind: str) -> list[bytes]:
        return [self._start(_BLANK[kind])]

    @override
    def _delta(self, kind: str, text: str) -> bytes:
        return self._grown({"type": f"{kind}_delta", kind: text})

    @override
    def _closed(self, kind: str) -> list[bytes]:
        return [named_event("content_block_stop", {"index": self._index})]

    @override
    def _call(self, part: CallPart, number: int, begins: bool) -> list[bytes]:
        if number:
            return []
        opened = self._open_call(part) if begins else []
        return [*opened, *self._arguments(part)]

    @override
    def _ended(self) -> list[bytes]:
        out = list[bytes]()
        for kind, text in self._later:
            out += super()._text(kind, text)
        calls = self._calls.complete()
        for call in calls[1:]:
            out += (*self._open_call(call), *self._arguments(call))
        out += self._close()
        fields = {"delta": self._reason(called=bool(calls)), **self._report()}
        return [*out, named_event("message_delta", fields), named_event("message_stop", {})]

    @override
    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        compaction = self._managed.sealed_compaction
        content: list[Mapping[str, Any]] = [] if compaction is None else [compaction_block(compaction)]
        if piece.thought:
            content.append({**_BLANK["thinking"], "thinking": piece.thought})
        if piece.text:
            content.append({**_BLANK["text"], "text": piece.text})
        for number, call in enumerate(piece.calls):
            content.append({**self._call_block(call, number), "input": arguments_of(call.arguments)})
        message = {**self._message(identity, self._usage), "content": content}
        return {**message, **self._reason(called=bool(piece.calls)), **self._report()}

    def _report(self) -> dict[str, Any]:
        """The usage, and what came of the client's edits and compaction."""
        usage = usage_of(self._usage)
        if self._compacts:
            usage["iterations"] = iterations(self._managed, usage)
        return {"usage": usage, **({"context_management": applied(self._managed)} if self._edits else {})}

    def _reason(self, *, called: bool) -> dict[str, Any]:
        """Why the answer ends, and the sequence that ended it, where the backend tells that."""
        reason = _REASONS.get(self._finish or "", "end_turn")
        if self._managed.ended:
            reason = COMPACTION
        elif called and reason == "end_turn":
            reason = "tool_use"
        elif self._stopped and reason == "end_turn":
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stopped}
        return {"stop_reason": reason, "stop_sequence": None}

    def _open_call(self, call: CallPart) -> list[bytes]:
        out = [*self._close(), self._start(self._call_block(call, self._index + 1))]
        self._block = "tool_use"
        return out

    def _arguments(self, part: CallPart) -> list[bytes]:
        return [self._grown({"type": "input_json_delta", "partial_json": part.arguments})] if part.arguments else []

    def _start(self, block: Mapping[str, Any]) -> bytes:
        self._index += 1
        return named_event("content_block_start", {"index": self._index, "content_block": block})

    def _grown(self, delta: Mapping[str, Any]) -> bytes:
        return named_event("content_block_delta", {"index": self._index, "delta": delta})

    def _message(self, identity: Identity, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": identity.model or self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage_of(usage),
        }

    def _call_block(self, call: CallPart, number: int) -> dict[str, Any]:
        call_id = call.id or f"toolu_{self._id.removeprefix(ID_PREFIX)}_{number}"
        return {"type": "tool_use", "id": call_id, "name": call.name, "input": {}, "caller": _CALLER}


def error_body(error: Any, status: int = 0) -> dict[str, Any]:
    """An error in Anthropic's shape; `status` is the HTTP status where there is one.

    Of a prompt that is too long it begins in the words by which Claude Code (2.1) knows that, and compacts.
    """
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code = status or whole_number(fields.get("code"))
    kind = _KINDS.get(code) or ("invalid_request_error" if 400 <= code < 500 else "")
    if not kind:
        known = str(fields.get("type"))
        kind = known if known in _KINDS.values() else "api_error"
    message = str(fields.get("message") or "The backend failed.")
    tokens, window = whole_number(fields.get("n_prompt_tokens")), whole_number(fields.get("n_ctx"))
    if tokens and window:
        message = f"prompt is too long: {tokens} tokens > {window} maximum. {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Usage as Anthropic counts it: what came from a cache is no part of the input tokens."""
    prompt = whole_number(usage.get("prompt_tokens"))
    cached = whole_number(dict_in(usage, "prompt_tokens_details").get("cached_tokens"))
    thinking = whole_number(dict_in(usage, "completion_tokens_details").get("reasoning_tokens"))
    counts: dict[str, Any] = {
        "input_tokens": max(0, prompt - cached),
        "output_tokens": whole_number(usage.get("completion_tokens")),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": min(cached, prompt),
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "output_tokens_details": {"thinking_tokens": thinking} if thinking else None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }
    return {**counts, "spillway": usage["spillway"]} if "spillway" in usage else counts
