"""The least that a pass-through in Python can be: ASGI without a framework, on aiohttp's client.

What Spillway costs above this is the price of watching; uvicorn benchmarks.bare:app  with UPSTREAM=http://127.0.0.1:8080
"""

from __future__ import annotations

import asyncio
import os

import aiohttp
from starlette.types import Receive, Scope, Send

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:8080")  # noqa: TID251 - a program of its own


class Bare:
    """Passes every request on and every answer back, piece by piece."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._relay(scope, await _body(receive), receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _relay(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        assert self._session is not None
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name != b"host"]
        url = UPSTREAM + scope["raw_path"].decode()
        async with self._session.request(scope["method"], url, headers=headers, data=body) as response:

            async def close_when_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                response.close()

            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(close_when_gone())
                await send({"type": "http.response.start", "status": response.status, "headers": response.raw_headers})
                async for data in response.content.iter_any():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                watcher.cancel()


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


app = Bare()
