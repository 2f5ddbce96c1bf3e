"""Writing an answer as a response: whole, or as the events of a stream.

Events: OpenAI API reference, "Streaming events" of Responses (2026), and PyPI `openai` 3.54.0, `types/responses/`.
Codex (0.169) takes items from `response.output_item.done`, drops deltas of items that were not added, and asks again
where no `response.completed` comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from proxy.core.managing import Managed
from proxy.core.piece import NOBODY, CallPart, Identity, Piece
from proxy.core.request import Request
from proxy.dialects.responses.conversation import items_in, tools_in
from proxy.dialects.responses.items import CallItem, CompactionItem, MessageItem, OutputItem, ReasoningItem, SummaryItem
from proxy.dialects.responses.request import is_prewarming
from proxy.dialects.responses.response import response_of, usage_of
from proxy.dialects.responses.stored import identified, listed_item
from proxy.dialects.responses.tools import ToolName, functions_offered
from proxy.dialects.translating import CallPieces, Translator, named_event

_CODES = {"context_length_exceeded", "rate_limit_exceeded", "invalid_prompt", "server_error"}
"""Codes of errors that clients look for inside a stream (Codex 0.169, PyPI `openai` 3.54.0)."""
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not complete."""


class ResponsesWriter(Translator):
    """Writes the events of one answer: items are added, grow, and are done; the response holds them all at its end."""

    media_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        super().__init__(managed)
        self._asked: Mapping[str, Any] = request.form
        self._model = request.model
        self._unique = unique
        self._silent = "stop" if is_prewarming(self._asked) else None
        tools = functions_offered(tools_in(self._asked))
        self._named: dict[str, ToolName] = {name: named for name, (_, named) in tools.items()}
        reasoning = self._asked.get("reasoning")
        summarised = isinstance(reasoning, dict) and bool(reasoning.get("summary"))
        self._thinking: type[ReasoningItem] = SummaryItem if summarised else ReasoningItem
        self._sequence = 0
        self._created: int | None = None
        """When, in seconds since the epoch; None: the response is not opened."""
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        """The message or reasoning that grows."""
        self._compacted: CompactionItem | None = None
        self._calls: dict[int, CallItem] = {}
        self._pieces = CallPieces()

    @override
    def _failed(self, error: Any) -> bytes:
        fields = error if isinstance(error, dict) else {"message": str(error)}
        message, code = str(fields.get("message") or "The backend failed."), fields.get("code")
        details = {"code": code if code in _CODES else "server_error", "message": message}
        self.final = self._response("failed", error=details)
        return self._begin(NOBODY) + self._event("response.failed", response=self.final)

    @override
    def _ended(self) -> bytes:
        out = [self._begin(NOBODY), *self._compaction(), *self._done_all()]
        self.final = self._complete()
        return b"".join((*out, self._event(f"response.{self.final['status']}", response=self.final)))

    @override
    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        self._begin(identity)
        self._compaction()
        self._events(piece, identity)
        self._done_all()
        return self._complete()

    # -- events

    @override
    def _events(self, piece: Piece, identity: Identity) -> bytes:
        says = piece.choice or piece.role or piece.text or piece.thought or piece.calls
        out = [self._begin(identity)] if says else []
        if out:
            out += self._compaction()
        if piece.thought:
            out += self._grow(self._thinking, piece.thought)
        if piece.text:
            out += self._grow(MessageItem, piece.text)
        for part in piece.calls:
            out += self._call(part)
        return b"".join(out)

    def _begin(self, identity: Identity) -> bytes:
        if self._created is not None:
            return b""
        self._created, self._model = identity.created, identity.model or self._model
        created = self._event("response.created", response=self._response("in_progress"))
        return created + self._event("response.in_progress", response=self._response("in_progress"))

    def _compaction(self) -> list[bytes]:
        """The compaction that the answer begins with, if there is one that was not told."""
        compaction = self._managed.sealed_compaction
        if compaction is None or self._compacted is not None:
            return []
        item = self._compacted = CompactionItem(self._item_id(CompactionItem.prefix), compaction.seal)
        out: list[bytes] = []
        self._add(item, out)
        # Not before the item is added: OpenAI's npm SDK throws at an output index that it does not know.
        coming = self._event("response.compaction.compacting", item_id=item.id, output_index=0)
        return [*out, coming, *self._done(item)]

    def _grow(self, kind: type[MessageItem | ReasoningItem], text: str) -> list[bytes]:
        out: list[bytes] = []
        if type(self._open) is not kind:
            out += self._done_open()
            self._open = self._add(kind(self._item_id(kind.prefix)), out)
        item = self._open
        assert item is not None
        return out + self._item_events(item, item.grow(text))

    def _call(self, part: CallPart) -> list[bytes]:
        out = self._done_open()
        index, begins = self._pieces.take(part)
        if begins or index not in self._calls:
            named = self._named.get(part.name) or ToolName("function", part.name)
            call_id = part.id or f"call_{self._unique}_{index}"
            self._calls[index] = self._add(CallItem(self._item_id(CallItem.prefix), named, call_id), out)
        call = self._calls[index]
        return out + self._item_events(call, call.grow(part.arguments))

    def _done_open(self) -> list[bytes]:
        item, self._open = self._open, None
        return [] if item is None else self._done(item)

    def _done_all(self) -> list[bytes]:
        out = self._done_open()
        for call in self._calls.values():
            out += self._done(call)
        return out

    def _add(self, item: Any, out: list[bytes]) -> Any:
        self._items.append(item)
        out += self._item_events(item, item.added())
        return item

    def _done(self, item: OutputItem) -> list[bytes]:
        cut = self._finish == "length" and item is self._items[-1]
        return self._item_events(item, item.done("incomplete" if cut else "completed"))

    def _item_events(self, item: OutputItem, events: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
        index = self._items.index(item)
        return [self._event(f"response.{kind}", output_index=index, **fields) for kind, fields in events]

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event(kind, {"sequence_number": self._sequence - 1, **fields})

    def _used(self) -> Mapping[str, Any]:
        """The usage of the answer; of the summaries, where there is nothing else in it."""
        if not self._managed.ended:
            return self._usage
        return dict(zip(("prompt_tokens", "completion_tokens"), self._managed.spent, strict=True))

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._unique}_{len(self._items)}"

    def _complete(self) -> dict[str, Any]:
        """The response at its end, which says why it is not complete if it is not."""
        reason = _CUT.get(self._finish or "")
        if reason is None:
            return self._response("completed")
        return self._response("incomplete", incomplete_details={"reason": reason})

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        created = self._created or 0
        if status != "in_progress":
            fields["output"] = [item.item() for item in self._items]
            fields["completed_at"] = created if status == "completed" else None
            fields["usage"] = None if status == "failed" else usage_of(self._used())
        return response_of(
            self._asked, id=f"resp_{self._unique}", created_at=created, model=self._model, status=status, **fields
        )


class CompactedWriter(ResponsesWriter):
    """Writes the answer to `POST /v1/responses/compact`: the user's messages as they were sent, and the compaction behind them.

    Clients may send all of it again; what the compaction stands for is then left out.
    """

    @override
    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        response = super()._body(piece, identity)
        messages = [item for item in items_in(self._asked.get("input")) if item.get("role") == "user"]
        listed = [listed_item(identified(item, self._unique, number)) for number, item in enumerate(messages)]
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*listed, *response["output"]],
            "usage": usage_of(self._used()),
        }
