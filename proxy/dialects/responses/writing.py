"""Writing an answer as a response: in one body, or as the events of a stream.

Events and fields: OpenAI API reference, "Streaming events" and "The response object" (2026), and PyPI `openai` 3.54.0,
`types/responses/`. Codex (0.169) takes items from `response.output_item.done`, drops deltas of items that were not added,
and asks again where no `response.completed` comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from typing_extensions import override

from proxy.core.managing import COMPACTION, Managed, SealedCompaction
from proxy.core.piece import NOBODY, CallPart, Identity, Piece, whole_number
from proxy.core.request import Request
from proxy.dialects.bodies import dict_in, dicts_in
from proxy.dialects.responses.items import ToolName, free_text, functions_offered, items_in
from proxy.dialects.responses.request import is_prewarming
from proxy.dialects.responses.stored import identified, is_stored, listed_item
from proxy.dialects.translator import Translator, named_event

Json: TypeAlias = dict[str, Any]

_CODES = {"context_length_exceeded", "rate_limit_exceeded", "invalid_prompt", "server_error"}
"""Codes of errors that clients look for inside a stream (Codex 0.169, PyPI `openai` 3.54.0)."""
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not complete."""
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, with its value where that has none."""
_FUNCTION = dict.fromkeys(("description", "parameters", "strict"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextForm:
    """How items of one part, which is a text, are written."""

    prefix: str
    """Of its id."""
    item: Json
    """What is in it besides its id, status and part."""
    holds: str
    """The field of the item that holds the part."""
    part: Json
    """What is in the part besides its text."""
    index: str
    """The field by which events name the part."""
    event: str
    """What events about the text begin with."""
    part_event: str = ""
    """The same of events about the part; empty: there are none."""
    extra: Json = field(default_factory=dict)
    """What is in events about the text besides that."""


_MESSAGE = _TextForm(
    prefix="msg",
    item={"type": "message", "role": "assistant"},
    holds="content",
    part={"type": "output_text", "annotations": [], "logprobs": []},
    index="content_index",
    event="output_text",
    part_event="content_part",
    extra={"logprobs": []},
)
_REASONING = _TextForm(
    prefix="rs",
    item={"type": "reasoning", "summary": []},
    holds="content",
    part={"type": "reasoning_text"},
    index="content_index",
    event="reasoning_text",
)
_SUMMARY = _TextForm(
    prefix="rs",
    item={"type": "reasoning"},
    holds="summary",
    part={"type": "summary_text"},
    index="summary_index",
    event="reasoning_summary_text",
    part_event="reasoning_summary_part",
)
"""Reasoning for clients that show summaries only, and asked for one."""


@dataclass(slots=True)
class _Item:
    """An item of the output while it is written: text, a call, or a compaction."""

    id: str
    index: int
    form: _TextForm | ToolName | str
    """A text's, the tool that is called, or the seal of a compaction."""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def text(self) -> str:
        """The text, or the arguments of the call, as far as they have come."""
        return "".join(self.pieces)

    def part(self) -> Json:
        """The part that holds the text."""
        assert isinstance(self.form, _TextForm)
        return {**self.form.part, "text": self.text}

    def written(self) -> Json:
        """Its JSON, as far as it has come."""
        if isinstance(self.form, str):
            return {"id": self.id, "type": COMPACTION, "encrypted_content": self.form}
        if isinstance(self.form, ToolName):
            return self.form.item(self.call_id, self.text, self.id, self.status)
        parts = [self.part()] if self.pieces else []
        return {"id": self.id, "status": self.status, **self.form.item, self.form.holds: parts}


class ResponsesWriter(Translator):
    """Writes the events of one answer: items are added, grow, and are done; the response holds them all at its end."""

    media_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        self._asked: Mapping[str, Any] = request.form
        super().__init__(managed, silent="stop" if is_prewarming(self._asked) else None)
        self._model = request.model
        self._unique = unique
        self._tools = {name: tool for name, (_, tool) in functions_offered(dicts_in(self._asked, "tools")).items()}
        summarised = bool(dict_in(self._asked, "reasoning").get("summary"))
        self._forms = {"text": _MESSAGE, "thinking": _SUMMARY if summarised else _REASONING}
        self._created = 0
        self._sequence = 0
        self._items: list[_Item] = []
        self._open_calls: dict[int, _Item] = {}

    @override
    def _begin(self, identity: Identity, prompt_tokens: int) -> list[bytes]:
        self._created, self._model = identity.created, identity.model or self._model
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    @override
    def _compaction(self, compaction: SealedCompaction) -> list[bytes]:
        item, added = self._add("cmp", compaction.seal)
        # Not before the item is added: OpenAI's npm SDK throws at an output index that it does not know.
        coming = self._event("response.compaction.compacting", item_id=item.id, output_index=item.index)
        return [added, coming, self._done(item)]

    @override
    def _open(self, kind: str) -> list[bytes]:
        form = self._forms[kind]
        item, added = self._add(form.prefix, form)
        return [added, *self._part_event(item, form, "added")]

    @override
    def _delta(self, kind: str, text: str) -> bytes:
        item, form = self._items[-1], self._forms[kind]
        item.pieces.append(text)
        return self._item_event(item, f"{form.event}.delta", **{form.index: 0}, delta=text, **form.extra)

    @override
    def _closed(self, kind: str) -> list[bytes]:
        item, form = self._items[-1], self._forms[kind]
        done = self._item_event(item, f"{form.event}.done", **{form.index: 0}, text=item.text, **form.extra)
        return [done, *self._part_event(item, form, "done"), self._done(item)]

    @override
    def _call(self, part: CallPart, number: int, begins: bool) -> list[bytes]:
        out = self._close()
        if begins:
            tool = self._tools.get(part.name) or ToolName("function", part.name)
            item, added = self._add("fc", tool, part.id or f"call_{self._unique}_{number}")
            self._open_calls[number] = item
            out.append(added)
        item = self._open_calls[number]
        item.pieces.append(part.arguments)
        # Only arguments that are JSON on both sides can be sent piece by piece.
        if part.arguments and isinstance(item.form, ToolName) and item.form.kind == "function":
            out.append(self._item_event(item, "function_call_arguments.delta", delta=part.arguments))
        return out

    @override
    def _ended(self) -> list[bytes]:
        out = list[bytes]()
        for item in self._open_calls.values():
            out += (*self._call_done(item), self._done(item))
        self.final = self._complete()
        return [*out, self._event(f"response.{self.final['status']}", response=self.final)]

    @override
    def _failed(self, error: Any) -> bytes:
        fields = error if isinstance(error, dict) else {"message": str(error)}
        message, code = str(fields.get("message") or "The backend failed."), fields.get("code")
        begun = self._beginning(NOBODY)
        self.final = self._response(
            "failed", error={"code": code if code in _CODES else "server_error", "message": message}
        )
        return b"".join((*begun, self._event("response.failed", response=self.final)))

    @override
    def _body(self, piece: Piece, identity: Identity) -> Json:
        self._beginning(identity)
        self._written(piece, identity)
        self.end()
        assert self.final is not None
        return self.final

    # -- events

    def _add(self, prefix: str, form: _TextForm | ToolName | str, call_id: str = "") -> tuple[_Item, bytes]:
        """Add an item, and write that it is."""
        item = _Item(f"{prefix}_{self._unique}_{len(self._items)}", len(self._items), form, call_id)
        self._items.append(item)
        return item, self._event("response.output_item.added", output_index=item.index, item=item.written())

    def _done(self, item: _Item) -> bytes:
        cut = self._finish == "length" and item is self._items[-1]
        item.status = "incomplete" if cut else "completed"
        return self._event("response.output_item.done", output_index=item.index, item=item.written())

    def _part_event(self, item: _Item, form: _TextForm, what: str) -> list[bytes]:
        if not form.part_event:
            return []
        return [self._item_event(item, f"{form.part_event}.{what}", **{form.index: 0}, part=item.part())]

    def _call_done(self, item: _Item) -> list[bytes]:
        assert isinstance(item.form, ToolName)
        if item.form.kind == "function":
            fields = {"name": item.form.name, "arguments": item.text}
            return [self._item_event(item, "function_call_arguments.done", **fields)]
        text = free_text(item.text)
        return [
            self._item_event(item, "custom_tool_call_input.delta", delta=text),
            self._item_event(item, "custom_tool_call_input.done", input=text),
        ]

    def _item_event(self, item: _Item, kind: str, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", output_index=item.index, item_id=item.id, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event(kind, {"sequence_number": self._sequence - 1, **fields})

    # -- the response

    def _complete(self) -> Json:
        """The response at its end, which says why it is not complete if it is not."""
        reason = _CUT.get(self._finish or "")
        if reason is None:
            return self._response("completed")
        return self._response("incomplete", incomplete_details={"reason": reason})

    def _usage_sent(self) -> Json:
        """The usage of the answer; of the summaries, where there is nothing else in it."""
        if not self._managed.ended:
            return usage_of(self._usage)
        prompt_tokens, completion_tokens = self._managed.spent
        return usage_of({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})

    def _response(self, status: str, **fields: Any) -> Json:
        """The object, with every field that the SDKs of OpenAI, Vercel and others ask for."""
        asked = self._asked
        echoed = {name: default if asked.get(name) is None else asked[name] for name, default in _ECHOED.items()}
        if isinstance(echoed["tools"], list):
            echoed["tools"] = list(map(_echoed_tool, echoed["tools"]))
        ended = status != "in_progress"
        return {
            "id": f"resp_{self._unique}",
            "object": "response",
            "created_at": self._created,
            "completed_at": self._created if status == "completed" else None,
            "model": self._model,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": [item.written() for item in self._items] if ended else [],
            **echoed,
            "service_tier": "default",
            "store": is_stored(asked),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "usage": self._usage_sent() if ended and status != "failed" else None,
            **fields,
        }


class CompactedWriter(ResponsesWriter):
    """Writes the answer to `POST /v1/responses/compact`: the user's messages as they were sent, and the compaction behind them.

    Clients may send all of it again; what the compaction stands for is then left out.
    """

    @override
    def _body(self, piece: Piece, identity: Identity) -> Json:
        response = super()._body(piece, identity)
        messages = [item for item in items_in(self._asked.get("input")) if item.get("role") == "user"]
        listed = [listed_item(identified(item, self._unique, number)) for number, item in enumerate(messages)]
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*listed, *response["output"]],
            "usage": self._usage_sent(),
        }


def _echoed_tool(tool: Any) -> Any:
    """A tool as it is repeated: a function with all its fields."""
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return {**_FUNCTION, **tool} if is_function else tool


def usage_of(usage: Mapping[str, Any]) -> Json:
    """Usage by the names that it has here."""
    prompt, completion = whole_number(usage.get("prompt_tokens")), whole_number(usage.get("completion_tokens"))
    cached = whole_number(dict_in(usage, "prompt_tokens_details").get("cached_tokens"))
    reasoning = whole_number(dict_in(usage, "completion_tokens_details").get("reasoning_tokens"))
    counts: Json = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }
    return {**counts, "spillway": usage["spillway"]} if "spillway" in usage else counts
