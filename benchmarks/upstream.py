"""A fake llama-server that costs next to nothing: canned bytes, one write per streamed chunk.

The request's `user` field says what to stream: `bench:CHUNKS:PAUSE` with PAUSE in microseconds between chunks, and
`bench:CHUNKS:PAUSE:hold` to fall silent after them. Prints its port, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import uvloop
from typing_extensions import override

MODEL = "bench"
WINDOW = 262_144
"""Tokens; far above the long conversation, so that nothing is ever compacted here."""
REPLY = "The fox is quick and brown, and the dog does not mind at all."
WORDS = tuple(f" word{number}" for number in range(500))

_CHUNK = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
_EVENT_STREAM = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _encoded(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    return _chunked(b"data: %b\n\n" % _encoded({"choices": [choice], **_CHUNK}))


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"completion_tokens": completion, "prompt_tokens": prompt, "total_tokens": prompt + completion}


def _answer(data: Any, status: bytes = b"200 OK") -> bytes:
    body = _encoded(data)
    head = b"HTTP/1.1 %b\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _completion(body: bytes) -> bytes:
    message = {"role": "assistant", "content": REPLY}
    choice = {"finish_reason": "stop", "index": 0, "message": message}
    done = {"choices": [choice], **_CHUNK, "object": "chat.completion", "usage": _usage(len(body) // 4, 16)}
    return _answer(done)


FIRST = _frame({"role": "assistant", "content": ""})
FRAMES = tuple(_frame({"content": word}) for word in WORDS)
LAST = _frame({}, "stop")
DONE = _chunked(b"data: [DONE]\n\n") + _END

_META = {
    "vocab_type": 2,
    "n_vocab": 32000,
    "n_ctx": WINDOW,
    "n_ctx_train": WINDOW,
    "n_embd": 4096,
    "n_params": 7,
    "size": 7,
}
_MODELS = {
    "models": [{"name": MODEL, "model": MODEL, "capabilities": ["completion"]}],
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "llamacpp", "meta": _META}],
}
_PROPS = {
    "default_generation_settings": {"n_ctx": WINDOW, "params": {}},
    "total_slots": 64,
    "model_alias": MODEL,
    "model_path": "/models/bench.gguf",
    "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True, "supports_system_role": True},
    "modalities": {"vision": False, "audio": False},
    "build_info": "b0-bench",
    "is_sleeping": False,
}
GET = {
    b"/v1/models": _answer(_MODELS),
    b"/models": _answer(_MODELS),
    b"/props": _answer(_PROPS),
    b"/health": _answer({"status": "ok"}),
    b"/slots": _answer([{"id": 0, "n_ctx": WINDOW, "is_processing": False}]),
}
NOT_FOUND = _answer(
    {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, b"404 Not Found"
)


@dataclass
class Plan:
    """One stream: what is left to send."""

    chunks: int
    pause: float
    hold: bool
    usage: bool
    prompt: int
    sent: int = 0


class Server(asyncio.Protocol):
    """One connection. Requests are not pipelined."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiting: Plan | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._head = b""
        self._needed = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    @override
    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        if not self._head and not self._read_head():
            return
        if self._size >= self._needed:
            whole = b"".join(self._received)
            head, body = self._head, whole[len(self._head) : self._needed]
            self._received, self._size, self._head = [], 0, b""
            self._serve(head, body)

    def _read_head(self) -> bool:
        whole = b"".join(self._received)
        self._received = [whole]
        end = whole.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = whole[: end + 4]
        _, found, length = self._head.lower().partition(b"\r\ncontent-length:")
        self._needed = len(self._head) + (int(length.split(b"\r\n", 1)[0]) if found else 0)
        return True

    def _serve(self, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if method == b"GET":
            self._write(GET.get(path, NOT_FOUND))
        elif path != b"/v1/chat/completions":
            self._write(NOT_FOUND)
        elif b'"user":"bench:' in body:
            self._stream(body)
        else:
            self._write(_completion(body))

    def _stream(self, body: bytes) -> None:
        order = body.split(b'"user":"bench:', 1)[1].split(b'"', 1)[0].decode().split(":")
        asked = b'"include_usage":true' in body or b'"include_usage": true' in body
        plan = Plan(int(order[0]), int(order[1]) / 1e6, "hold" in order, asked, len(body) // 4)
        self._write(_EVENT_STREAM)
        self._write(FIRST)
        self._next(plan)

    def _next(self, plan: Plan) -> None:
        if self._transport is None:
            return
        if plan.sent < plan.chunks:
            self._write(FRAMES[plan.sent % len(FRAMES)])
            plan.sent += 1
            self._schedule(plan)
        elif not plan.hold:
            self._write(LAST + (self._usage_frame(plan) if plan.usage else b"") + DONE)

    def _schedule(self, plan: Plan) -> None:
        if self._paused:
            self._waiting = plan
        elif plan.pause:
            self._loop.call_later(plan.pause, self._next, plan)
        else:
            self._loop.call_soon(self._next, plan)  # its own turn of the loop, so its own write to the socket

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        plan, self._waiting = self._waiting, None
        if plan is not None:
            self._schedule(plan)

    @staticmethod
    def _usage_frame(plan: Plan) -> bytes:
        return _chunked(
            b"data: %b\n\n" % _encoded({"choices": [], **_CHUNK, "usage": _usage(plan.prompt, plan.chunks)})
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
