"""Writing an answer as Ollama does: a JSON object a line, or one for the whole.

Fields: Ollama's API reference (docs/api.md, 0.14) and PyPI `ollama` 0.6.3, `_types.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from proxy.dialects.calls import Numbering, arguments_of
from proxy.neutral.dialect import WholeAnswer
from proxy.neutral.piece import NOBODY, CallPart, Identity, Piece, whole_number
from proxy.wire.jsontext import dumps

_WORD = "%"
"""Stands for what is said, in a line that has none of it behind that."""
_DURATIONS = dict.fromkeys(("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"), 0)
"""Nanoseconds, which clients want to read; nobody measures them here."""


class ChatLines:
    """Writes the lines of an answer to `/api/chat`. Calls are told whole, and before the line that is `done`."""

    media_type = "application/x-ndjson"
    native = False

    def __init__(self, model: str) -> None:
        """`model` is what the client asked for, and is told."""
        self._model = model
        self._created = 0
        self._calls: dict[int, CallPart] = {}
        self._numbering = Numbering()
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._over = False

    def more(self, name: str) -> Callable[[str], bytes] | None:
        """A line that says a word says nothing else."""
        said = (_WORD, "") if name == "content" else ("", _WORD)
        before, _, after = self._line(self._saying(*said)).rpartition(_WORD.encode())
        return lambda text: before + text.encode() + after

    def relay(self, piece: Piece, identity: Identity | None, *, role_said: bool) -> bytes:
        """A piece that was read."""
        del role_said
        if piece.done:
            return self.end()
        if piece.error:
            return self.error({"error": piece.error})
        if piece.form is None:
            return b""
        return self._says(piece, identity or piece.identity or NOBODY)

    def part(self, piece: Piece, identity: Identity, *, role_said: bool) -> bytes:
        """What a piece of a later attempt says."""
        del role_said
        return self._says(Piece(text=piece.text, thought=piece.thought, calls=piece.calls), identity)

    def own(self, piece: Piece, identity: Identity) -> bytes:
        """A piece that Spillway made. What keeps the connection alive is a line that says nothing: there are no comments."""
        if self._over:
            return b""
        out = self._says(piece, identity)
        if piece.comment or piece.event is not None:
            event = {} if piece.event is None else {"event": piece.event}
            out += self._line(self._saying("", ""), **event)
        return out

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """The finish as it is."""
        del usage
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        """An error, after which nothing comes."""
        if self._over:
            return b""
        self._over = True
        return dumps(told(body.get("error"))) + b"\n"

    def end(self) -> bytes:
        """The calls, and the line that is `done`."""
        if self._over:
            return b""
        self._over = True
        calls = [call for _, call in sorted(self._calls.items())]
        out = self._line(self._saying("", "", calls)) if calls else b""
        return out + self._line(self._saying("", ""), done=True, **self._ending())

    def whole(self, whole: WholeAnswer, pieces: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        """The object that says what the first choice says."""
        came = [*pieces, *whole.pieces, Piece()][0]
        identity = whole.pieces[0].identity if whole.pieces else None
        self._created = (identity or NOBODY).created
        self._usage, self._finish = usage or {}, came.finish
        said = self._saying(came.text, came.thought, came.calls)
        return dumps(self._object({**said, "done": True, **self._ending()}))

    # -- lines

    def _says(self, piece: Piece, identity: Identity) -> bytes:
        if piece.index or self._over:
            return b""
        self._created = self._created or identity.created
        self._usage = piece.usage or self._usage
        self._finish = piece.finish or self._finish
        for part in piece.calls:
            index, _ = self._numbering.take(part)
            had = self._calls.get(index, CallPart())
            said = had.arguments + part.arguments
            self._calls[index] = replace(
                part, name=had.name or part.name, arguments=said, id=had.id or part.id
            )
        return self._line(self._saying(piece.text, piece.thought)) if piece.text or piece.thought else b""

    def _saying(self, text: str, thought: str, calls: Sequence[CallPart] = ()) -> dict[str, Any]:
        """The fields that hold what is said."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = [_call(index, call) for index, call in enumerate(calls)]
        return {"message": message}

    def _ending(self) -> dict[str, Any]:
        return {
            "done_reason": "length" if self._finish == "length" else "stop",
            **_DURATIONS,
            "prompt_eval_count": whole_number(self._usage.get("prompt_tokens")),
            "eval_count": whole_number(self._usage.get("completion_tokens")),
            **({"spillway": self._usage["spillway"]} if "spillway" in self._usage else {}),
        }

    def _line(self, said: Mapping[str, Any], **fields: Any) -> bytes:
        return dumps(self._object({**said, "done": False, **fields})) + b"\n"

    def _object(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        created = datetime.fromtimestamp(self._created, UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": created, **fields}


class GenerateLines(ChatLines):
    """Writes the lines of an answer to `/api/generate`."""

    @override
    def _saying(self, text: str, thought: str, calls: Sequence[CallPart] = ()) -> dict[str, Any]:
        del calls
        return {"response": text, "thinking": thought} if thought else {"response": text}


def told(error: Any) -> dict[str, str]:
    """An error as Ollama tells it."""
    message = error.get("message") if isinstance(error, dict) else error
    return {"error": str(message or "The backend failed.")}


def _call(index: int, call: CallPart) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": arguments_of(call.arguments)}
    return {"id": call.id, "function": function} if call.id else {"function": function}
