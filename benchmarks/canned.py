"""What the fake llama-server says: every byte is made before anyone asks for it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

MODEL = "bench"
WINDOW = 262_144
"""Tokens; far above the long conversation, so that nothing is ever compacted here."""
LATER_ID = "chatcmpl-later"
"""Every attempt has an id of its own."""
LATER_PROMPT = 600
"""Tokens of a prompt with which an answer is gone on with."""
REPLY = "The fox is quick and brown, and the dog does not mind at all."
WORDS = tuple(f" word{number}" for number in range(500))
"""What a stream says, over and over."""


_CONTENT = re.compile(rb'"content": ?"([^"]*)"')
_LOOKED_AT = "comes what nobody said so far; none of it is told again, so that whoever compares both finds nothing that is the same"


def after(word: str) -> str:
    """What an attempt that goes on with an answer says first: the end of what it was given.

    As much as is looked at before a continuation is believed to be one, so that it is passed on at once.
    """
    return f" after-{word} {_LOOKED_AT}"


def more(number: int) -> str:
    """What it says then."""
    return f" more{number}"


_CHUNK = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def _encoded(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _frame(delta: dict[str, str], finish: str | None = None, /, **fields: Any) -> bytes:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    return _chunked(b"data: %b\n\n" % _encoded({"choices": [choice], **_CHUNK, **fields}))


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"completion_tokens": completion, "prompt_tokens": prompt, "total_tokens": prompt + completion}


def _answer(data: Any, status: bytes = b"200 OK") -> bytes:
    body = _encoded(data)
    head = b"HTTP/1.1 %b\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def prompt_tokens(body: bytes) -> int:
    """Count about as a model would: what counts by anything but the texts teaches whoever learns from it nonsense."""
    return sum(len(text) // 3 + 4 for text in _CONTENT.findall(body))


def completion(body: bytes) -> bytes:
    message = {"role": "assistant", "content": REPLY}
    choice = {"finish_reason": "stop", "index": 0, "message": message}
    done = {"choices": [choice], **_CHUNK, "object": "chat.completion", "usage": _usage(prompt_tokens(body), 16)}
    return _answer(done)


def usage_frame(prompt: int, said: int) -> bytes:
    """The frame that tells the usage, where that was asked for."""
    return _chunked(b"data: %b\n\n" % _encoded({"choices": [], **_CHUNK, "usage": _usage(prompt, said)}))


def later_start(word: str, *, timings: bool) -> tuple[bytes, ...]:
    """How an attempt begins that goes on after this word: with the role, and one chunk of text."""
    role = _frame({"role": "assistant", "content": ""}, id=LATER_ID)
    return role, _later_frame(after(word), 1, timings=timings)


@cache
def later_frames(count: int, *, timings: bool) -> tuple[bytes, ...]:
    """How it goes on; llama-server counts in each frame if it was asked to."""
    return tuple(_later_frame(more(number), number + 2, timings=timings) for number in range(count))


def _later_frame(text: str, said: int, *, timings: bool) -> bytes:
    fields = {"timings": _timings(said)} if timings else {}
    return _frame({"content": text}, None, id=LATER_ID, **fields)


def _timings(said: int) -> dict[str, float]:
    """As llama-server b11549 writes them with `timings_per_token`."""
    return {
        "cache_n": 0,
        "prompt_n": LATER_PROMPT,
        "prompt_ms": 361.107,
        "prompt_per_token_ms": 0.6018,
        "prompt_per_second": 1661.557,
        "predicted_n": said,
        "predicted_ms": said * 9.731,
        "predicted_per_token_ms": 9.731,
        "predicted_per_second": 102.764,
    }


FIRST = _frame({"role": "assistant", "content": ""})
FRAMES = tuple(_frame({"content": word}) for word in WORDS)
LAST = _frame({}, "stop")
LATER_LAST = _frame({}, "stop", id=LATER_ID)
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
NOT_FOUND = _answer({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, b"404 Not Found")
