"""llama-server's objects for the demo model: model list, properties, completions and their chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import orjson

from proxy.demo.engine import MODEL, WINDOW, Answer

DESCRIPTION = f"Spillway's built-in demo: a script with a window of {WINDOW:,} tokens, no language model"
DONE = b"data: [DONE]\n\n"
_CREATED = 1_760_000_000
"""The demo has no clock: what it says depends on nothing but the request."""
_MS_PER_TOKEN = 4.0


def models() -> dict[str, Any]:
    """`GET /v1/models`. `info.meta` is what Open WebUI shows and heeds: its own tools would not fit the window."""
    meta = {"description": DESCRIPTION, "capabilities": {"builtin_tools": False, "usage": True}}
    model = {
        "id": MODEL,
        "object": "model",
        "created": _CREATED,
        "owned_by": "llamacpp",
        "aliases": [MODEL],
        "tags": ["demo"],
        "description": DESCRIPTION,
        "meta": {"n_ctx": WINDOW, "n_ctx_train": WINDOW},
        "info": {"meta": meta},
    }
    return {"object": "list", "data": [model]}


def properties() -> dict[str, Any]:
    """`GET /props`."""
    return {
        "default_generation_settings": {"n_ctx": WINDOW},
        "total_slots": 1,
        "model_alias": MODEL,
        "model_path": MODEL,
        "modalities": {"vision": False, "audio": False},
        "chat_template_caps": {
            "supports_tools": False,
            "supports_tool_calls": False,
            "supports_system_role": True,
        },
        "build_info": "spillway-demo",
        "is_sleeping": False,
    }


def completion(answer: Answer) -> dict[str, Any]:
    """A whole answer. As on llama-server it repeats the partial answer that it goes on with."""
    message = {"role": "assistant", "content": answer.prefill + "".join(answer.tokens)}
    return {
        **_head("chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
        "usage": _usage(answer),
        "timings": _timings(answer, len(answer.tokens)),
    }


def chunks(answer: Answer, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The frames of a streamed answer, one per token, without the end mark. A stream sends new text only."""
    head = _head("chat.completion.chunk")
    yield _frame(head, {"role": "assistant", "content": None})
    running = body.get("timings_per_token") is True
    for number, token in enumerate(answer.tokens, start=1):
        yield _frame(head, {"content": token}, timings=_timings(answer, number) if running else None)
    timings = _timings(answer, len(answer.tokens))
    yield _frame(head, {}, finish=answer.finish_reason, timings=timings)
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield _event({**head, "choices": [], "usage": _usage(answer), "timings": timings})


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": _CREATED, "model": MODEL}


def _frame(
    head: Mapping[str, Any],
    delta: Mapping[str, Any],
    *,
    finish: str | None = None,
    timings: Mapping[str, Any] | None = None,
) -> bytes:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    return _event({"choices": [choice], **head, **({"timings": timings} if timings else {})})


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt,
        "completion_tokens": len(answer.tokens),
        "total_tokens": answer.prompt + len(answer.tokens),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _timings(answer: Answer, generated: int) -> dict[str, Any]:
    return {
        "cache_n": 0,
        "prompt_n": answer.prompt,
        "prompt_ms": answer.prompt * _MS_PER_TOKEN / 10,
        "predicted_n": generated,
        "predicted_ms": generated * _MS_PER_TOKEN,
    }
