"""The least that a pass-through in Python can be: ASGI without a framework, on the HTTP client that Spillway uses.

What Spillway costs above this is the price of watching; uvicorn benchmarks.bare:app  with UPSTREAM=http://127.0.0.1:8080
"""

from __future__ import annotations

import os
from typing import cast

import httpx
from starlette.types import Receive, Scope, Send

from proxy.net.tasks import spawn
from proxy.net.transport import HttpTransport, build_request, open_transport

UPSTREAM = httpx.URL(os.environ.get("UPSTREAM", "http://127.0.0.1:8080"))  # noqa: TID251 - a program of its own


class Bare:
    """Hands every request on and every answer back, piece by piece."""

    def __init__(self) -> None:
        self._transport: HttpTransport | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            response = await self._sent_on(scope, await _body(receive))
            await _relay(response, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with open_transport(connect_timeout=10, read_timeout=900) as self._transport:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _sent_on(self, scope: Scope, body: bytes) -> httpx.Response:
        assert self._transport is not None
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        return await self._transport.handle_async_request(
            build_request(scope["method"], UPSTREAM, headers, body, target=scope["raw_path"])
        )


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _relay(response: httpx.Response, receive: Receive, send: Send) -> None:
    async def close_when_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await response.aclose()

    watcher = spawn(close_when_gone(), name="client-watch")
    try:
        head = {"status": response.status_code, "headers": response.headers.raw}
        await send({"type": "http.response.start", **head})
        async for data in cast("httpx.AsyncByteStream", response.stream):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except httpx.TransportError:
        return  # the server closes the connection of an answer that was not ended
    finally:
        watcher.cancel()
        await response.aclose()


app = Bare()
