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
from proxy.demo.engine import WINDOW, Refused, generate, measure

PACE = 0.004
"""Seconds per token: an answer longer than the window takes half a minute, so that one can watch."""


def create_demo(*, pace: float = PACE) -> Starlette:
    """The demo backend as an ASGI application; `pace` is in seconds per streamed token."""

    async def chat(request: Request) -> Response:
        body = await _body(request)
        answer = generate(body)
        if body.get("stream") is not True:
            return _json(wire.completion(answer))
        frames = _paced(wire.chunks(answer, body), pace)
        return StreamingResponse(
            frames, media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    return Starlette(
        routes=[
            Route("/health", _health),
            Route("/props", _props),
            Route("/slots", _slots),
            Route("/models", _models),
            Route("/v1/models", _models),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions/input_tokens", _count, methods=["POST"]),
        ],
        exception_handlers={Refused: _refuse, HTTPException: _not_found},
    )


async def _paced(frames: Iterator[bytes], pace: float) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame
        await asyncio.sleep(pace)
    yield wire.DONE


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise Refused(400, "invalid_request_error", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "invalid_request_error", "the body must be a JSON object")
    return body


async def _count(request: Request) -> Response:
    return _json({"input_tokens": measure(await _body(request)), "object": "response.input_tokens"})


async def _health(_: Request) -> Response:
    return _json({"status": "ok"})


async def _props(_: Request) -> Response:
    return _json(wire.properties())


async def _slots(_: Request) -> Response:
    return _json([{"id": 0, "n_ctx": WINDOW, "is_processing": False}])


async def _models(_: Request) -> Response:
    return _json(wire.models())


def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return _json(error.body, error.status)


def _not_found(_: Request, error: Exception) -> Response:
    del error  # also for a wrong method, as llama-server does
    return _json({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, 404)


def _json(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")
