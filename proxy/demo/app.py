"""HTTP interface of the demo: as much of llama-server's as Spillway and curious people ask for (b11549)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.core.sse import encode
from proxy.demo.model import MODEL, WINDOW, DemoAnswer, RequestRefused, generate, prompt_tokens

PACE = 0.004
"""Seconds per token: an answer longer than the window takes half a minute, so that one can watch."""
DESCRIPTION = f"Spillway's built-in demo: a script with a window of {WINDOW:,} tokens, no language model"
CREATED = 1_760_000_000
"""The demo has no clock: an answer depends on nothing but the request."""
_OTHER_MODEL = (
    f"No backend was found yet, and the demo serves {MODEL} only. Start LM Studio, Ollama, llama-server or vLLM, which is "
    "found within seconds, or start Spillway with --backend URL."
)
_GRACE = 1
"""Seconds that running answers get when the server is shut down."""
_TYPES = {404: "not_found_error"}
_PROPERTIES = {
    "default_generation_settings": {"params": {"max_tokens": -1, "stream": False}, "n_ctx": WINDOW},
    "total_slots": 1,
    "model_alias": MODEL,
    "model_path": f"/models/{MODEL}.gguf",
    "modalities": {"vision": False, "audio": False},
    "chat_template_caps": {"supports_tools": False, "supports_tool_calls": False, "supports_system_role": True},
    "build_info": MODEL,
    "is_sleeping": False,
}
_SLOT = {"id": 0, "n_ctx": WINDOW, "speculative": False, "is_processing": False}
# `info.meta` is what Open WebUI shows and heeds: its own tools would not fit the window.
_MODEL = {
    "id": MODEL,
    "object": "model",
    "created": CREATED,
    "owned_by": "llamacpp",
    "tags": ["demo"],
    "description": DESCRIPTION,
    "meta": {"n_ctx": WINDOW, "n_ctx_train": WINDOW},
    "info": {"meta": {"description": DESCRIPTION, "capabilities": {"builtin_tools": False, "usage": True}}},
}
_MODELS = {"object": "list", "data": [_MODEL]}


def create_demo(*, pace: float = PACE) -> Starlette:
    """Return the demo backend as an ASGI application; `pace` is in seconds per streamed token."""

    async def chat(request: Request) -> Response:
        body = await _body(request)
        if body.get("model") not in (None, "", MODEL):
            raise RequestRefused(404, _OTHER_MODEL, code="model_not_found")
        answer = generate(body)
        if body.get("stream") is not True:
            return _json(_completion(answer))
        stream = _paced(_frames(answer, body), pace)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    return Starlette(
        routes=[
            _fixed("/health", {"status": "ok"}),
            _fixed("/props", _PROPERTIES),
            _fixed("/slots", [_SLOT]),
            _fixed("/models", _MODELS),
            _fixed("/v1/models", _MODELS),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions/input_tokens", _count, methods=["POST"]),
        ],
        exception_handlers={RequestRefused: _refuse, HTTPException: _not_found},
    )


@asynccontextmanager
async def serve_on_loopback(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on the running event loop, on a free port of loopback; gives its root URL.

    uvicorn's start and stop are called by themselves, without its main loop: that one would take the signal
    handlers away from the server that Spillway itself runs on.
    """
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.shutdown(sockets=[listener])


def _completion(answer: DemoAnswer) -> dict[str, Any]:
    """Return a whole answer. As on llama-server it repeats the partial answer that it goes on with."""
    message = {"role": "assistant", "content": answer.prefill + "".join(answer.tokens)}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    return {**_head("chat.completion"), "choices": [choice], "usage": _usage(answer)}


def _frames(answer: DemoAnswer, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the frames of a streamed answer, one per token. A stream sends new text only."""
    head = _head("chat.completion.chunk")

    def frame(delta: Mapping[str, Any], finish: str | None = None, count: int | None = None) -> bytes:
        counts = {} if count is None else {"timings": _timings(answer, count)}
        return encode({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **head, **counts})

    yield frame({"role": "assistant", "content": None})
    running = body.get("timings_per_token") is True
    for number, token in enumerate(answer.tokens, start=1):
        yield frame({"content": token}, count=number if running else None)
    yield frame({}, answer.finish_reason, len(answer.tokens))
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        timings = _timings(answer, len(answer.tokens))
        yield encode({**head, "choices": [], "usage": _usage(answer), "timings": timings})
    yield b"data: [DONE]\n\n"


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": CREATED, "model": MODEL}


def _usage(answer: DemoAnswer) -> dict[str, int]:
    completion = len(answer.tokens)
    return {"prompt_tokens": answer.prompt, "completion_tokens": completion, "total_tokens": answer.prompt + completion}


def _timings(answer: DemoAnswer, count: int) -> dict[str, int]:
    return {"cache_n": 0, "prompt_n": answer.prompt, "predicted_n": count}


def _fixed(path: str, data: Any) -> Route:
    async def reply(_: Request) -> Response:
        return _json(data)

    return Route(path, reply)


async def _paced(frames: Iterator[bytes], pace: float) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame
        await asyncio.sleep(pace)


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return body


async def _count(request: Request) -> Response:
    return _json({"input_tokens": prompt_tokens(await _body(request)), "object": "response.input_tokens"})


def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    kind = _TYPES.get(error.status, "invalid_request_error")
    fields = {"code": error.status, "message": str(error), "type": kind, **error.fields}
    return _json({"error": fields}, error.status)


def _not_found(request: Request, error: Exception) -> Response:
    del error  # also for a wrong method, as llama-server does
    return _refuse(request, RequestRefused(404, "File Not Found"))


def _json(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")
