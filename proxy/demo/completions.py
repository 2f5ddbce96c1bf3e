"""An answer as llama-server sends it: whole, or streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from proxy.demo.engine import MODEL, Generated
from proxy.demo.wire import timings
from proxy.wire.sse import encode

CREATED = 1_760_000_000
"""The demo has no clock: what it says depends on nothing but the request."""


def completion(answer: Generated) -> dict[str, Any]:
    """A whole answer. As on llama-server it repeats the partial answer that it goes on with."""
    message = {"role": "assistant", "content": answer.prefill + "".join(answer.tokens)}
    return {
        **_head("chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
        "usage": _usage(answer),
        "timings": timings(answer.prompt, len(answer.tokens)),
    }


def token_frames(answer: Generated, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The frames of a streamed answer, one per token, without the end mark. A stream sends new text only."""
    head = _head("chat.completion.chunk")

    def frame(delta: Mapping[str, Any], finish: str | None = None, made: int | None = None) -> bytes:
        told = {} if made is None else {"timings": timings(answer.prompt, made)}
        return encode({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **head, **told})

    yield frame({"role": "assistant", "content": None})
    running = body.get("timings_per_token") is True
    for number, token in enumerate(answer.tokens, start=1):
        yield frame({"content": token}, made=number if running else None)
    yield frame({}, answer.finish_reason, len(answer.tokens))
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        told = timings(answer.prompt, len(answer.tokens))
        yield encode({**head, "choices": [], "usage": _usage(answer), "timings": told})


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": CREATED, "model": MODEL}


def _usage(answer: Generated) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt,
        "completion_tokens": len(answer.tokens),
        "total_tokens": answer.prompt + len(answer.tokens),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
