"""Writing an answer as Ollama does: a JSON object a line, or one for the whole.

Fields: Ollama's API reference (docs/api.md, 0.14) and PyPI `ollama` 0.6.3, `_types.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from proxy.core.jsontext import dumps
from proxy.core.managing import Managed
from proxy.core.piece import CallPart, Identity, Piece, arguments_of, whole_number
from proxy.core.request import Request
from proxy.dialects.ollama.reading import DURATIONS
from proxy.dialects.ollama.request import moment
from proxy.dialects.translating import CallPieces, Translator


class ChatLines(Translator):
    """Writes the lines of an answer to `/api/chat`. Calls are told whole, and before the line that is `done`."""

    media_type = "application/x-ndjson"

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        del unique
        super().__init__(managed)
        self._model = request.model
        self._created = 0
        self._calls = CallPieces()

    @override
    def _aside(self, frame: bytes) -> bytes:
        """Nothing: lines have no comments."""
        del frame
        return b""

    @override
    def _comment(self, comment: str) -> bytes:
        """A line that says nothing."""
        del comment
        return b"" if self._over else self._line(self._saying("", ""))

    @override
    def _failed(self, error: Any) -> bytes:
        return dumps(error_of(error)) + b"\n"

    @override
    def _ended(self) -> bytes:
        calls = list(map(self._calls.call, range(len(self._calls))))
        out = self._line(self._saying("", "", calls)) if calls else b""
        return out + self._line(self._saying("", ""), done=True, **self._ending())

    @override
    def _body(self, piece: Piece, identity: Identity) -> dict[str, Any]:
        self._created = identity.created
        fields = self._saying(piece.text, piece.thought, piece.calls)
        return self._object({**fields, "done": True, **self._ending()})

    # -- lines

    @override
    def _events(self, piece: Piece, identity: Identity) -> bytes:
        self._created = self._created or identity.created
        for part in piece.calls:
            self._calls.take(part)
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
            **{name: whole_number(self._usage.get(name)) for name in DURATIONS},
            "prompt_eval_count": whole_number(self._usage.get("prompt_tokens")),
            "eval_count": whole_number(self._usage.get("completion_tokens")),
            **({"spillway": self._usage["spillway"]} if "spillway" in self._usage else {}),
        }

    def _line(self, content: Mapping[str, Any], **fields: Any) -> bytes:
        return dumps(self._object({**content, "done": False, **fields})) + b"\n"

    def _object(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self._model, "created_at": moment(self._created), **fields}


def error_of(error: Any, status: int = 0) -> dict[str, str]:
    """Return an error as Ollama has it."""
    del status
    message = error.get("message") if isinstance(error, dict) else error
    return {"error": str(message or "The backend failed.")}


def _call(index: int, call: CallPart) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": arguments_of(call.arguments)}
    return {"id": call.id, "function": function} if call.id else {"function": function}
