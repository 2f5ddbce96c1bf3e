"""Answers of Ollama's `/api/chat`, as chunks of chat completions or as a chat completion.

Shapes: Ollama, `api/types.go` (ChatResponse, Metrics) and `ToStreamChunks`, `FinishChunk`, `NewError` in `openai/openai.go`,
0.33; errors in mid-stream are lines of their own (`streamResponse` in `server/routes.go`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from proxy.core import sse
from proxy.core.jsontext import dumps, loads
from proxy.core.piece import whole_number
from proxy.dialects.bodies import text_in
from proxy.dialects.chat.reading import DONE

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
"""Nanoseconds, which go into the usage: Ollama's clients show tokens a second by them."""
_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error"}
_REASONS = {"load": "stop", "unload": "stop", "": "stop"}


class LineReader:
    """Translates the lines of one answer as they come; linear however small the pieces are."""

    def __init__(self, answer_id: str, *, usage: bool) -> None:
        """Begin an answer of that id; `usage`: its stream ends with a chunk of usage."""
        self._head: dict[str, Any] = {"id": answer_id}
        self._usage = usage
        self._calls = 0
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Frames for all lines that are complete now; maybe none.

        Raises:
            FrameTooLong: a line has no end.
        """
        start = len(self._held)
        self._held += data
        end = self._held.rfind(b"\n", start) + 1
        if not end and len(self._held) > sse.LARGEST_FRAME:
            raise sse.FrameTooLong(f"a line of more than {sse.LARGEST_FRAME} bytes")
        lines = self._held[:end].split(b"\n")
        del self._held[:end]
        return b"".join(frame for line in lines if line.strip() for frame in self._frames(bytes(line)))

    def completion(self, body: bytes) -> bytes:
        """The body of an answer that is not streamed; one that is no answer stays as it is."""
        line = _object_in(body)
        if line is None or "error" in line:
            return error_body(200, body)
        head = self._envelope(line, "chat.completion")
        return dumps({**head, "choices": [self._choice("message", line)], "usage": _usage(line)})

    def _frames(self, data: bytes) -> Iterator[bytes]:
        line = _object_in(data)
        if line is None or "error" in line:  # data that is no JSON is found to be so by who reads the frame
            yield b"data: " + error_body(500, data) + b"\n\n"
            return
        first = "object" not in self._head
        head = self._envelope(line, "chat.completion.chunk")
        choice = self._choice("delta", line)
        if not first:
            del choice["delta"]["role"]
        end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        if not end["finish_reason"] or any(choice["delta"].values()):
            yield sse.encode({**head, "choices": [{**choice, "finish_reason": None}]})
        if end["finish_reason"]:
            yield sse.encode({**head, "choices": [end]})
            if self._usage:
                yield sse.encode({**head, "choices": [], "usage": _usage(line)})
            yield DONE

    def _envelope(self, line: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Fields that are the same for all chunks; the first line tells them."""
        if "object" not in self._head:
            fixed = {"created": _seconds(line.get("created_at")), "model": text_in(line, "model")}
            self._head |= {"object": kind, **fixed, "system_fingerprint": "fp_ollama"}
        return self._head

    def _choice(self, name: str, line: Mapping[str, Any]) -> dict[str, Any]:
        message = line.get("message") or {}
        delta: dict[str, Any] = {"role": "assistant", "content": text_in(message, "content")}
        if thought := text_in(message, "thinking"):
            delta["reasoning"] = thought
        if calls := [self._call(call) for call in message.get("tool_calls") or ()]:
            delta["tool_calls"] = calls
        reason = text_in(line, "done_reason")
        finish = _REASONS.get(reason, reason) if line.get("done") is True else None
        finish = "tool_calls" if finish == "stop" and self._calls else finish
        more = {"logprobs": {"content": line["logprobs"]}} if line.get("logprobs") else {}
        return {"index": 0, name: delta, "finish_reason": finish, **more}

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call; numbered here, because Ollama (to 0.20) numbers all of an answer 0, and older ones name no id."""
        index, function = self._calls, call.get("function") or {}
        self._calls += 1
        arguments = dumps(function.get("arguments") or {}).decode()
        call_id = text_in(call, "id") or f"call_{self._head['id'].rpartition('-')[2]}_{index}"
        named = {"name": text_in(function, "name"), "arguments": arguments}
        return {"index": index, "id": call_id, "type": "function", "function": named}


def error_body(status: int, body: bytes) -> bytes:
    """An error's body in OpenAI's form; one that is none of Ollama's stays as it is."""
    line = _object_in(body)
    if line is None or not isinstance(line.get("error"), str):
        return body
    kind = _ERROR_TYPES.get(status, "api_error")
    return dumps({**line, "error": {"message": line["error"], "type": kind, "param": None, "code": None}})


def _object_in(data: bytes) -> dict[str, Any] | None:
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _usage(line: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = whole_number(line.get("prompt_eval_count")), whole_number(line.get("eval_count"))
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, **{name: line[name] for name in DURATIONS if whole_number(line.get(name))}}


def _seconds(moment: Any) -> int:
    """Seconds since the epoch of a time as Ollama writes it; 0 for anything else."""
    try:
        return int(datetime.fromisoformat(moment).timestamp())
    except (TypeError, ValueError, OverflowError):
        return 0
