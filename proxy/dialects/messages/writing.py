"""Writing an answer as a Message: whole, or as the events of a stream.

Events and fields: Anthropic API reference, "Streaming Messages" (2026), and PyPI `anthropic` 2.12.0, `types/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from proxy.core.jsontext import loads
from proxy.core.managing import Managed
from proxy.core.piece import NOBODY, CallPart, Identity, Piece, arguments_of, whole_number
from proxy.core.request import Request
from proxy.dialects.messages.managing import COMPACTION, applied, compaction_block, iterations
from proxy.dialects.messages.tools import changed_in
from proxy.dialects.translating import CallPieces, Translator, named_event

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
ID_PREFIX = "msg_"
_CALLER = {"type": "direct"}
_BLANK: Mapping[str, Mapping[str, Any]] = {"text": {"citations": None}, "thinking": {"signature": ""}}
"""What else a block has by its kind."""
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

    The end waits for the usage, which backends report after they gave the reason.
    """

    media_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        super().__init__(managed)
        self._silent = "length" if request.form.get("max_tokens") == 0 else None
        self._id = ID_PREFIX + unique
        self._model = request.model
        self._edits = bool(request.form.get("context_management"))
        self._tool_changes = None if request.compaction is None else changed_in(request.form)
        self._compacted = False
        """Whether the compaction was told."""
        self._opened = False
        self._blocks = 0
        """How many were opened."""
        self._block = ""
        """The kind of the open one; empty: none is."""
        self._calls = CallPieces()
        self._live: int | None = None
        """The call that is written while it comes: blocks do not interleave."""
        self._waiting: list[int] = []
        """Calls that are written at the end."""
        self._later: list[tuple[str, str]] = []
        """Text that came while a call was only half written, with its kind."""

    @override
    def _failed(self, error: Any) -> bytes:
        return named_event("error", error_body(error))

    @override
    def _ended(self) -> bytes:
        out = [self._open(NOBODY), *self._compaction(), *self._postponed(), self._close()]
        out += map(self._complete_call, self._waiting)
        fields = {
            "delta": self._reason(self._finish, called=bool(len(self._calls))),
            "usage": self._used(),
            **self._applied(),
        }
        out.append(named_event("message_delta", fields))
        return b"".join((*out, named_event("message_stop", {})))

    @override
    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        compaction = self._managed.sealed_compaction
        content: list[dict[str, Any]] = [] if compaction is None else [compaction_block(compaction, self._tool_changes)]
        if piece.thought:
            content.append({"type": "thinking", "thinking": piece.thought, "signature": ""})
        if piece.text:
            content.append({"type": "text", "text": piece.text, "citations": None})
        content += [
            {**self._call_block(call, index), "input": arguments_of(call.arguments)}
            for index, call in enumerate(piece.calls)
        ]
        message = {**self._message(identity, self._usage), "content": content}
        reason = self._reason(piece.finish, called=bool(piece.calls))
        return {**message, **reason, "usage": self._used(), **self._applied()}

    # -- events

    @override
    def _events(self, piece: Piece, identity: Identity) -> bytes:
        out: list[bytes] = []
        if piece.choice or piece.role or piece.text or piece.thought:
            out += [self._open(identity, piece.prompt_tokens), *self._compaction()]
        for kind, text in (("thinking", piece.thought), ("text", piece.text)):
            if text and self._is_half():
                self._later.append((kind, text))
            elif text:
                out += [*self._postponed(), *self._delta(kind, text)]
        for part in piece.calls:
            out += self._call(part)
        return b"".join(out)

    def _open(self, identity: Identity, prompt_tokens: int = 0) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return named_event("message_start", {"message": self._message(identity, {"prompt_tokens": prompt_tokens})})

    def _compaction(self) -> list[bytes]:
        """The block of a compaction, whole, if there is one that was not told."""
        compaction = self._managed.sealed_compaction
        if compaction is None or self._compacted:
            return []
        self._compacted = True
        block = compaction_block(compaction, self._tool_changes)
        opened = self._begin(COMPACTION, {**block, "content": None, "encrypted_content": None})
        delta = {name: value for name, value in block.items() if name != "tool_changes"}
        delta["type"] = f"{COMPACTION}_delta"
        grown = named_event("content_block_delta", {"index": self._blocks - 1, "delta": delta})
        return [*opened, grown, self._close()]

    def _used(self) -> dict[str, Any]:
        """The usage of the answer."""
        usage = usage_of(self._usage)
        return {**usage, "iterations": iterations(self._managed, usage)} if self._tool_changes is not None else usage

    def _applied(self) -> dict[str, Any]:
        return {"context_management": applied(self._managed)} if self._edits else {}

    def _reason(self, finish: str | None, *, called: bool) -> dict[str, Any]:
        """Why the answer ends, and the sequence that ended it, where the backend tells that."""
        reason = _REASONS.get(finish or "", "end_turn")
        if self._managed.ended:
            reason = COMPACTION
        elif called and reason == "end_turn":
            reason = "tool_use"
        elif self._stopped and reason == "end_turn":
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stopped}
        return {"stop_reason": reason, "stop_sequence": None}

    def _postponed(self) -> list[bytes]:
        later, self._later = self._later, []
        return [event for kind, text in later for event in self._delta(kind, text)]

    def _delta(self, kind: str, text: str) -> list[bytes]:
        """A piece of a block that grows, which is opened where another one is."""
        out: list[bytes] = []
        if self._block != kind:
            out += self._begin(kind, {"type": kind, kind: "", **_BLANK[kind]})
        return [*out, self._delta_event(kind, text)]

    def _delta_event(self, kind: str, text: str) -> bytes:
        delta = {"type": f"{kind}_delta", kind: text}
        return named_event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _call(self, part: CallPart) -> list[bytes]:
        """A piece of a tool call."""
        number, begins = self._calls.take(part)
        if begins and self._live is None and not self._waiting:
            opened = self._begin("tool_use", self._call_block(part, self._blocks))
            self._live = number
            return [*opened, self._arguments(part.arguments)]
        if number == self._live:
            return [self._arguments(part.arguments)]
        if number not in self._waiting and (begins or part.arguments):
            self._waiting.append(number)
        return []

    def _is_half(self) -> bool:
        """Return whether arguments of the live call may still come."""
        return self._live is not None and not _is_complete(self._calls.call(self._live).arguments)

    def _complete_call(self, number: int) -> bytes:
        call = self._calls.call(number)
        opened = self._begin("tool_use", self._call_block(call, self._blocks))
        return b"".join((*opened, self._arguments(call.arguments), self._close()))

    def _arguments(self, text: str) -> bytes:
        if not text:
            return b""
        delta = {"type": "input_json_delta", "partial_json": text}
        return named_event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _begin(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Open a block."""
        closed = self._close()
        self._block = kind
        self._blocks += 1
        return [closed, named_event("content_block_start", {"index": self._blocks - 1, "content_block": block})]

    def _close(self) -> bytes:
        if not self._block:
            return b""
        self._block, self._live = "", None
        return named_event("content_block_stop", {"index": self._blocks - 1})

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
        call_id = call.id or f"toolu_{self._id.removeprefix('msg_')}_{number}"
        return {"type": "tool_use", "id": call_id, "name": call.name, "input": {}, "caller": _CALLER}


def _is_complete(arguments: str) -> bool:
    """Return whether the arguments of a call may be all of them."""
    try:
        loads(arguments)
    except ValueError:
        return False
    return True


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
    details = usage.get("prompt_tokens_details")
    cached = whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0
    prompt = whole_number(usage.get("prompt_tokens"))
    parts = usage.get("completion_tokens_details")
    thinking = whole_number(parts.get("reasoning_tokens")) if isinstance(parts, dict) else 0
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
