"""The items of a response's output while they are written: each tells the events in which it is added, grows, is done."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from proxy.dialects.responses.tools import ToolName, free_text

Events: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Kinds, less their `response.`, and fields, less what every event has."""


class OutputItem:
    """One item; a kind of item says what it is made of."""

    prefix: ClassVar[str]
    """Of its id."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.status = "in_progress"
        self._pieces: list[str] = []

    def added(self) -> Events:
        """Its beginning."""
        return [("output_item.added", {"item": self.item()}), *self._opening()]

    def take(self, text: str) -> None:
        """A piece of it, of which somebody else tells."""
        self._pieces.append(text)

    def grow(self, text: str) -> Events:
        """A piece of it."""
        self.take(text)
        return [self.delta(text)] if text else []

    def done(self, status: str) -> Events:
        """Its end: `completed` or `incomplete`."""
        closing = self._closing()
        self.status = status
        return [*closing, ("output_item.done", {"item": self.item()})]

    def item(self) -> dict[str, Any]:
        """Its JSON, as far as it has come."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The text that it has."""
        return "".join(self._pieces)

    def _opening(self) -> Events:
        return []

    def delta(self, text: str) -> tuple[str, dict[str, Any]]:
        """The event that tells of a piece."""
        raise NotImplementedError

    def _closing(self) -> Events:
        raise NotImplementedError


class _Worded(OutputItem):
    """An item of one part, which is a text."""

    place: ClassVar[str]
    """By which field events tell the part."""
    kind: ClassVar[str]
    """Of the events about the text."""
    part_kind: ClassVar[str] = ""
    """Of the events about the part; empty: there are none."""
    extra: ClassVar[dict[str, Any]] = {}

    def _at(self, **fields: Any) -> dict[str, Any]:
        return {"item_id": self.id, self.place: 0, **fields}

    def _part(self) -> dict[str, Any]:
        raise NotImplementedError

    @override
    def _opening(self) -> Events:
        return [] if not self.part_kind else [(f"{self.part_kind}.added", self._at(part=self._part()))]

    @override
    def delta(self, text: str) -> tuple[str, dict[str, Any]]:
        return f"{self.kind}.delta", self._at(delta=text, **self.extra)

    @override
    def _closing(self) -> Events:
        done = (f"{self.kind}.done", self._at(text=self.text, **self.extra))
        return [done] if not self.part_kind else [done, (f"{self.part_kind}.done", self._at(part=self._part()))]


class MessageItem(_Worded):
    """Text of the assistant."""

    prefix, place, kind, part_kind = "msg", "content_index", "output_text", "content_part"
    extra: ClassVar[dict[str, Any]] = {"logprobs": []}

    @override
    def item(self) -> dict[str, Any]:
        content = [self._part()] if self._pieces else []
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    @override
    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


class ReasoningItem(_Worded):
    """Reasoning of the model, as it is."""

    prefix, place, kind = "rs", "content_index", "reasoning_text"

    @override
    def item(self) -> dict[str, Any]:
        return {**self._shell(), "summary": [], "content": [self._part()] if self._pieces else []}

    def _shell(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "status": self.status}

    @override
    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class SummaryItem(ReasoningItem):
    """The same for clients that show summaries only, and asked for one."""

    place, kind, part_kind = "summary_index", "reasoning_summary_text", "reasoning_summary_part"

    @override
    def item(self) -> dict[str, Any]:
        return {**self._shell(), "summary": [self._part()] if self._pieces else []}

    @override
    def _part(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": self.text}


class CallItem(OutputItem):
    """A tool call."""

    prefix = "fc"

    def __init__(self, item_id: str, named: ToolName, call_id: str) -> None:
        super().__init__(item_id)
        self._named = named
        self._call_id = call_id

    @override
    def grow(self, text: str) -> Events:
        """Only arguments that are JSON on both sides can be told piece by piece."""
        events = super().grow(text)
        return events if self._named.kind == "function" else []

    @override
    def item(self) -> dict[str, Any]:
        return self._named.item(self._call_id, self.text, self.id, self.status)

    @override
    def delta(self, text: str) -> tuple[str, dict[str, Any]]:
        return "function_call_arguments.delta", {"item_id": self.id, "delta": text}

    @override
    def _closing(self) -> Events:
        if self._named.kind == "function":
            done = {"item_id": self.id, "name": self._named.name, "arguments": self.text}
            return [("function_call_arguments.done", done)]
        if self._named.kind != "custom":
            return []
        text = free_text(self.text)
        return [
            ("custom_tool_call_input.delta", {"item_id": self.id, "delta": text}),
            ("custom_tool_call_input.done", {"item_id": self.id, "input": text}),
        ]


class CompactionItem(OutputItem):
    """A compaction for the client to keep, which comes all at once."""

    prefix = "cmp"

    def __init__(self, item_id: str, seal: str) -> None:
        super().__init__(item_id)
        self.seal = seal

    @override
    def item(self) -> dict[str, Any]:
        return {"id": self.id, "type": "compaction", "encrypted_content": self.seal}

    @override
    def _closing(self) -> Events:
        return []
