"""Writer of answers as a response: in one body, or as the events of a stream.

Events and fields: OpenAI API reference, "Streaming events" and "The response object" (2026), and PyPI `openai` 3.54.0,
`types/responses/`. Codex (0.169) takes items from `response.output_item.done`, drops deltas of items that were not added,
and asks again if no `response.completed` comes.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from proxy.core.jsontext import JsonObject
from proxy.core.piece import NOBODY, Identity
from proxy.core.request import COMPACTION, Managed, Request
from proxy.dialects.bodies import dicts_in, pick, token_counts
from proxy.dialects.responses.items import free_text, items_in, tools_offered
from proxy.dialects.responses.request import identified, is_stored
from proxy.dialects.translator import ContentBlock, Translator, event

_CODES = {"context_length_exceeded", "rate_limit_exceeded", "invalid_prompt", "server_error"}
"""Codes of errors that clients look for inside a stream (Codex 0.169, PyPI `openai` 3.54.0)."""
# Codex treats `response.incomplete` as an error, and OpenAI's agents end there as well, so an answer is resumed while
# room can be made.
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not complete."""
_ABSENT = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("safety_identifier", "user"),
)
_ECHOED: Mapping[str, Any] = {
    **dict.fromkeys(_ABSENT),
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Fields of the request that a response repeats, with their values if the request has none."""
_FUNCTION = dict.fromkeys(("description", "parameters", "strict"))
_PREFIXES = {"text": "msg", "thinking": "rs", "call": "fc", COMPACTION: "cmp"}
_TEXT_EVENTS: Mapping[str, tuple[str, str, JsonObject, JsonObject]] = {
    "text": ("output_text", "content_part", {"content_index": 0}, {"logprobs": []}),
    # Reasoning is sent as a summary, because every client that shows reasoning shows that form.
    "thinking": ("reasoning_summary_text", "reasoning_summary_part", {"summary_index": 0}, {}),
}
"""By kind of block: prefixes of events about its text and about the part with it, the part's place, and more fields of text events."""


class ResponsesWriter(Translator):
    """Writes the events of one answer: items are added, grow, and are done; the final response has all of them."""

    # Events without a published schema are left out: OpenAI's npm SDK (6.49, 7.57) throws at them, as it does at
    # `response.compaction.compacting` before its item.

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        super().__init__(request, unique, managed)
        self._tools = tools_offered(dicts_in(request.form, "tools"))
        self._sequence = 0

    @override
    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        """Write `response.in_progress` again: Codex (0.169) gives up a stream after five minutes with nothing but comments."""
        if not self._begun:
            return b"".join(self._beginning(identity or fallback))
        return self._event("response.in_progress", response=self._response("in_progress"))

    @override
    def _begin(self, prompt_tokens: int) -> list[bytes]:
        response = self._response("in_progress")
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    @override
    def _opened(self, block: ContentBlock) -> list[bytes]:
        added = self._event("response.output_item.added", output_index=block.index, item=self._item(block))
        return [added, *self._part_event(block, "added")]

    @override
    def _delta(self, block: ContentBlock, text: str) -> bytes:
        if block.kind == COMPACTION:
            # Written as the delta, so after the item is added: OpenAI's npm SDK throws at an output index that it does not know.
            return self._item_event(block, "compaction.compacting")
        if block.kind == "call":
            # A custom tool's text is inside JSON at the backend but plain for the client, so it is sent when complete.
            custom = self._is_custom(block)
            return b"" if custom else self._item_event(block, "function_call_arguments.delta", delta=text)
        name, _, place, extra = _TEXT_EVENTS[block.kind]
        return self._item_event(block, f"{name}.delta", **place, delta=text, **extra)

    @override
    def _closed(self, block: ContentBlock) -> list[bytes]:
        out = self._call_done(block) if block.kind == "call" else []
        if block.kind in _TEXT_EVENTS:
            name, _, place, extra = _TEXT_EVENTS[block.kind]
            done = self._item_event(block, f"{name}.done", **place, text=block.text, **extra)
            out = [done, *self._part_event(block, "done")]
        return [*out, self._event("response.output_item.done", output_index=block.index, item=self._item(block))]

    @override
    def _ended(self) -> list[bytes]:
        self.final = self._complete()
        return [self._event(f"response.{self.final['status']}", response=self.final)]

    @override
    def _failed(self, error: Any) -> bytes:
        fields = error if isinstance(error, dict) else {"message": str(error)}
        message, code = str(fields.get("message") or "The backend failed."), fields.get("code")
        head = self._beginning(NOBODY)
        code = code if code in _CODES else "server_error"
        self.final = self._response("failed", error={"code": code, "message": message})
        return b"".join((*head, self._event("response.failed", response=self.final)))

    @override
    def _answer(self) -> JsonObject:
        assert self.final is not None
        return self.final

    # -- items and their events

    def _is_custom(self, call: ContentBlock) -> bool:
        return call.name in self._tools and self._tools[call.name][0]["type"] == "custom"

    def _item(self, block: ContentBlock) -> JsonObject:
        """Return a block as an item of the output, as far as it has come."""
        item_id = self._item_id(block)
        if block.kind == "call":
            return {"id": item_id, "call_id": self._call_id(block), "status": block.status, **self._called(block)}
        if block.kind == COMPACTION:
            compaction = self._managed.sealed_compaction
            return {"id": item_id, "type": COMPACTION, "encrypted_content": compaction and compaction.seal}
        head = {"id": item_id, "status": block.status}
        parts = [_part(block)] if block.pieces else []
        if block.kind == "text":
            return {**head, "type": "message", "role": "assistant", "content": parts}
        sealed = {"encrypted_content": block.signature} if block.signature else {}
        return {**head, "type": "reasoning", "summary": parts, **sealed}

    def _called(self, call: ContentBlock) -> JsonObject:
        """Return the called tool by the client's name for it, and the arguments."""
        tool, namespace = self._tools.get(call.name, ({"name": call.name}, ""))
        named = {"name": tool["name"], **({"namespace": namespace} if namespace else {})}
        if self._is_custom(call):
            return {**named, "type": "custom_tool_call", "input": free_text(call.text)}
        return {**named, "type": "function_call", "arguments": call.text}

    def _part_event(self, block: ContentBlock, what: str) -> list[bytes]:
        if block.kind not in _TEXT_EVENTS:
            return []
        _, name, place, _ = _TEXT_EVENTS[block.kind]
        return [self._item_event(block, f"{name}.{what}", **place, part=_part(block))]

    def _call_done(self, block: ContentBlock) -> list[bytes]:
        if not self._is_custom(block):
            called = self._called(block)
            fields = {"name": called["name"], "arguments": block.text}
            return [self._item_event(block, "function_call_arguments.done", **fields)]
        text = free_text(block.text)
        return [
            self._item_event(block, "custom_tool_call_input.delta", delta=text),
            self._item_event(block, "custom_tool_call_input.done", input=text),
        ]

    def _item_event(self, block: ContentBlock, kind: str, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", output_index=block.index, item_id=self._item_id(block), **fields)

    def _item_id(self, block: ContentBlock) -> str:
        return f"{_PREFIXES[block.kind]}_{self._unique}_{block.index}"

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return event(kind, sequence_number=self._sequence - 1, **fields)

    # -- the response

    def _complete(self) -> JsonObject:
        """Return the final response, with the reason if it is incomplete."""
        reason = _CUT.get(self._finish or "")
        if reason is None:
            return self._response("completed")
        return self._response("incomplete", incomplete_details={"reason": reason})

    def _usage_sent(self) -> JsonObject:
        """Return the usage of the answer, or of the summaries if the response is a compaction only."""
        if not self._managed.ended:
            return usage_of(self._usage)
        prompt_tokens, completion_tokens = self._managed.spent
        return usage_of({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})

    def _response(self, status: str, **fields: Any) -> JsonObject:
        """Return the response object, with every field that the SDKs of OpenAI, Vercel and others require."""
        form, created = self._request.form, self._identity.created
        echoed = {name: default if form.get(name) is None else form[name] for name, default in _ECHOED.items()}
        if isinstance(echoed["tools"], list):
            echoed["tools"] = list(map(_echoed_tool, echoed["tools"]))
        ended = status != "in_progress"
        return {
            "id": f"resp_{self._unique}",
            "object": "response",
            "created_at": created,
            "completed_at": created if status == "completed" else None,
            "model": self._identity.model or self._request.model,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": list(map(self._item, self._blocks)) if ended else [],
            **echoed,
            "service_tier": "default",
            "store": is_stored(form),
            "presence_penalty": 0.0,
            "top_logprobs": 0,  # whatever the request asks for, none are returned
            "frequency_penalty": 0.0,
            "usage": self._usage_sent() if ended and status != "failed" else None,
            **fields,
        }


class CompactedWriter(ResponsesWriter):
    """Writes the answer to `POST /v1/responses/compact`: the user's messages as they were sent, then the compaction.

    Clients may send all of it again; the messages that the compaction covers are then left out.
    """

    @override
    def _answer(self) -> JsonObject:
        response = super()._answer()
        messages = [item for item in items_in(self._request.form.get("input")) if item.get("role") == "user"]
        listed = [_sent(identified(item, self._unique, number)) for number, item in enumerate(messages)]
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*listed, *response["output"]],
            "usage": response["usage"],
        }


def _sent(item: Mapping[str, Any]) -> JsonObject:
    """Return a user's message with the fields that clients expect in an output."""
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"status": "completed", **item, "content": parts}


def _part(block: ContentBlock) -> JsonObject:
    """Return the part of an item with its text."""
    if block.kind == "text":
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": block.text}
    return {"type": "summary_text", "text": block.text}


def _echoed_tool(tool: Any) -> Any:
    """Return a tool as the response repeats it: a function has all its fields."""
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return {**_FUNCTION, **tool} if is_function else tool


def usage_of(usage: Mapping[str, Any]) -> JsonObject:
    """Return the usage under the names of the Responses API."""
    prompt, cached, completion, reasoning = token_counts(usage)
    counts: JsonObject = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }
    return counts | pick(usage, ("spillway",))
