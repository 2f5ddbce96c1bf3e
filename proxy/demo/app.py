"""The demo backend's HTTP interface: the part of llama-server's that Spillway and curious people ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.demo import wire
from proxy.demo.completions import CREATED, completion, token_frames
from proxy.demo.engine import MODEL, WINDOW, generate, measure

PACE = 0.004
"""Seconds per token: an answer longer than the window takes half a minute, so that one can watch."""
DESCRIPTION = f"Spillway's built-in demo: a script with a window of {WINDOW:,} tokens, no language model"
_OTHER_MODEL = (
    f"No backend was found yet, and the demo serves {MODEL} only. Start LM Studio, Ollama, llama-server or vLLM, which is "
    "found within seconds, or start Spillway with --backend URL."
)
DONE = b"data: [DONE]\n\n"


def create_demo(*, pace: float = PACE) -> Starlette:
    """The demo backend as an ASGI application; `pace` is in seconds per streamed token."""

    async def chat(request: Request) -> Response:
        body = await _body(request)
        if body.get("model") not in (None, "", MODEL):
            raise wire.RequestRefused(404, wire.error(404, _OTHER_MODEL, code="model_not_found"))
        answer = generate(body)
        if body.get("stream") is not True:
            return _json(completion(answer))
        stream = _paced(token_frames(answer, body), pace)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    return Starlette(
        routes=[
            _told("/health", {"status": "ok"}),
            _told("/props", wire.properties(MODEL, WINDOW)),
            _told("/slots", [wire.slot(0, WINDOW)]),
            _told("/models", _models()),
            _told("/v1/models", _models()),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions/input_tokens", _count, methods=["POST"]),
        ],
        exception_handlers={wire.RequestRefused: _refuse, HTTPException: _not_found},
    )


def _models() -> dict[str, Any]:
    # `info.meta` is what Open WebUI shows and heeds: its own tools would not fit the window.
    meta = {"description": DESCRIPTION, "capabilities": {"builtin_tools": False, "usage": True}}
    model = wire.model_object(MODEL, CREATED) | {
        "tags": ["demo"],
        "description": DESCRIPTION,
        "meta": {"n_ctx": WINDOW, "n_ctx_train": WINDOW},
        "info": {"meta": meta},
    }
    return {"object": "list", "data": [model]}


def _told(path: str, data: Any) -> Route:
    async def tell(_: Request) -> Response:
        return _json(data)

    return Route(path, tell)


async def _paced(frames: Iterator[bytes], pace: float) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame
        await asyncio.sleep(pace)
    yield DONE


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise wire.RequestRefused(400, wire.error(400, f"the body is not JSON: {error}")) from None
    if not isinstance(body, dict):
        raise wire.RequestRefused(400, wire.error(400, "the body must be a JSON object"))
    return body


async def _count(request: Request) -> Response:
    return _json({"input_tokens": measure(await _body(request)), "object": "response.input_tokens"})


def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, wire.RequestRefused):
        raise error
    return _json(error.body, error.status)


def _not_found(_: Request, error: Exception) -> Response:
    del error  # also for a wrong method, as llama-server does
    return _json(wire.error(404, "File Not Found"), 404)


def _json(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")
