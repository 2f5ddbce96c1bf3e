"""Writing an answer as a response: whole, or as the events of a stream.

Events: OpenAI API reference, "Streaming events" of Responses (2026), and PyPI `openai` 3.54.0, `types/responses/`.
Codex (0.169) takes items from `response.output_item.done`, drops deltas of items that were not added, and asks again
where no `response.completed` comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.dialects.calls import Numbering
from proxy.dialects.responses.items import CallItem, Item, MessageItem, ReasoningItem, SummaryItem
from proxy.dialects.responses.response import response_of, usage_of
from proxy.dialects.responses.tools import Named, offered
from proxy.neutral.dialect import WholeAnswer
from proxy.neutral.piece import NOBODY, CallPart, Identity, Piece
from proxy.neutral.request import Request
from proxy.wire import sse
from proxy.wire.jsontext import dumps

_CODES = {"context_length_exceeded", "rate_limit_exceeded", "invalid_prompt", "server_error"}
"""Codes of errors that clients look for inside a stream (Codex 0.169, PyPI `openai` 3.54.0)."""

_WORD = "%"
"""Stands for what is said, in an event that has none of it otherwise."""
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not complete."""


class ResponsesWriter:
    """Writes the events of one answer: items are added, grow, and are done; the response holds them all at its end."""

    media_type = "text/event-stream; charset=utf-8"
    native = False

    def __init__(self, request: Request, unique: str) -> None:
        self._asked: Mapping[str, Any] = request.form
        self._model = request.model
        self._unique = unique
        tools = self._asked.get("tools")
        self._named: dict[str, Named] = {
            name: named
            for name, (_, named) in offered(
                tool for tool in (tools if isinstance(tools, list) else ()) if isinstance(tool, dict)
            ).items()
        }
        reasoning = self._asked.get("reasoning")
        summarised = isinstance(reasoning, dict) and bool(reasoning.get("summary"))
        self._thinking: type[ReasoningItem] = SummaryItem if summarised else ReasoningItem
        self._sequence = 0
        self._created: int | None = None
        """When, in seconds since the epoch; None: the response is not opened."""
        self._over = False
        self._items: list[Item] = []
        self._open: Item | None = None
        """The message or reasoning that grows."""
        self._calls: dict[int, CallItem] = {}
        self._numbering = Numbering()
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}

    def more(self, name: str) -> Callable[[str], bytes] | None:
        """A piece more of the item that is open."""
        item = self._open
        if type(item) is not (MessageItem if name == "content" else self._thinking):
            return None
        kind, fields = item.delta(_WORD)
        named = f"response.{kind}".encode()
        head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (named, named)
        told = dumps({"output_index": self._items.index(item), **fields})
        before, after = told.removeprefix(b"{").split(_WORD.encode())

        def write(text: str) -> bytes:
            item.take(text)
            self._sequence += 1
            return b"%b%d,%b%b%b\n\n" % (head, self._sequence - 1, before, text.encode(), after)

        return write

    def relay(self, piece: Piece, identity: Identity | None, *, role_said: bool) -> bytes:
        """A piece that was read."""
        del role_said
        if piece.done:
            return self.end()
        if piece.error:
            return self.error({"error": piece.error})
        if piece.form is None:
            return piece.frame if piece.frame.startswith(b":") else b""
        return self._says(piece, identity or piece.identity or NOBODY)

    def part(self, piece: Piece, identity: Identity, *, role_said: bool) -> bytes:
        """What a piece of a later attempt says."""
        del role_said
        said = Piece(text=piece.text, thought=piece.thought, calls=piece.calls, choice=True)
        return self._says(said, identity)

    def own(self, piece: Piece, identity: Identity) -> bytes:
        """A piece that Spillway made; a status event is one that clients do not know, and pass over."""
        if piece.comment:
            return sse.comment(piece.comment)
        if self._over:
            return b""
        out = self._says(piece, identity)
        return out if piece.event is None else out + self._event("spillway.status", event=piece.event)

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """The finish as it is."""
        del usage
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        """An error, after which nothing comes."""
        if self._over:
            return b""
        said = body.get("error")
        error = said if isinstance(said, dict) else {"message": str(said)}
        message, code = str(error.get("message") or "The backend failed."), error.get("code")
        out = self._begin(NOBODY)
        self._over = True
        told = {"code": code if code in _CODES else "server_error", "message": message}
        return out + self._event("response.failed", response=self._response("failed", error=told))

    def end(self) -> bytes:
        """What is still open is done, and the whole response is told once more."""
        if self._over:
            return b""
        out = [self._begin(NOBODY), *self._done_all()]
        self._over = True
        status, reason = _ending(self._finish)
        return b"".join(
            (
                *out,
                self._event(f"response.{status}", response=self._response(status, incomplete_details=reason)),
            )
        )

    def whole(self, whole: WholeAnswer, pieces: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        """The response that says what the first choice says."""
        came = [*pieces, *whole.pieces, Piece()][0]
        self._says(came, (whole.pieces[0].identity if whole.pieces else None) or NOBODY)
        self._usage = self._usage if usage is None else usage
        self._done_all()
        status, reason = _ending(came.finish)
        return dumps(self._response(status, incomplete_details=reason))

    # -- events

    def _says(self, piece: Piece, identity: Identity) -> bytes:
        if piece.index or self._over:
            return b""
        self._usage = piece.usage or self._usage
        self._finish = piece.finish or self._finish
        says = piece.choice or piece.role or piece.event is not None
        out = [self._begin(identity)] if says or piece.text or piece.thought or piece.calls else []
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

    def _grow(self, kind: type[MessageItem | ReasoningItem], said: str) -> list[bytes]:
        out: list[bytes] = []
        if type(self._open) is not kind:
            out += self._done_open()
            self._open = self._add(kind(self._item_id(kind.prefix)), out)
        item = self._open
        assert item is not None
        return out + self._told(item, item.grow(said))

    def _call(self, part: CallPart) -> list[bytes]:
        out = self._done_open()
        index, begins = self._numbering.take(part)
        if begins or index not in self._calls:
            named = self._named.get(part.name) or Named("function", part.name)
            call_id = part.id or f"call_{self._unique}_{index}"
            self._calls[index] = self._add(CallItem(self._item_id(CallItem.prefix), named, call_id), out)
        call = self._calls[index]
        return out + self._told(call, call.grow(part.arguments))

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
        out += self._told(item, item.added())
        return item

    def _done(self, item: Item) -> list[bytes]:
        cut = self._finish == "length" and item is self._items[-1]
        return self._told(item, item.done("incomplete" if cut else "completed"))

    def _told(self, item: Item, events: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
        index = self._items.index(item)
        return [self._event(f"response.{kind}", output_index=index, **fields) for kind, fields in events]

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps(body))

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._unique}_{len(self._items)}"

    def _response(self, status: str, **told: Any) -> dict[str, Any]:
        created = self._created or 0
        if status != "in_progress":
            told["output"] = [item.whole() for item in self._items]
            told["completed_at"] = created if status == "completed" else None
            told["usage"] = None if status == "failed" else usage_of(self._usage)
        return response_of(
            self._asked,
            id=f"resp_{self._unique}",
            created_at=created,
            model=self._model,
            status=status,
            **told,
        )


def _ending(finish: str | None) -> tuple[str, dict[str, str] | None]:
    """Status, and why the response is not complete."""
    reason = _CUT.get(finish or "")
    return ("completed", None) if reason is None else ("incomplete", {"reason": reason})
