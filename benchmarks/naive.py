"""The pass-through that everyone writes first: FastAPI, a shared httpx client, a streamed response.

uvicorn benchmarks.naive:app      with UPSTREAM=http://127.0.0.1:8080
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:8080")  # noqa: TID251 - a program of its own


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=UPSTREAM, timeout=None, limits=limits) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def forward(request: Request, path: str) -> StreamingResponse:
    client: httpx.AsyncClient = request.app.state.client
    headers = [(name, value) for name, value in request.headers.raw if name != b"host"]
    upstream = client.build_request(
        request.method, f"/{path}", params=request.query_params, headers=headers, content=await request.body()
    )
    response = await client.send(upstream, stream=True)
    return StreamingResponse(
        response.aiter_raw(),
        status_code=response.status_code,
        headers=dict(response.headers),
        background=BackgroundTask(response.aclose),
    )
