"""Run the demo backend inside this process, on a free loopback port."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import uvicorn

from proxy.demo.app import PACE, create_demo

_GRACE = 1
"""Seconds that running answers get when the server is shut down."""


def serve_demo(*, pace: float = PACE) -> AbstractAsyncContextManager[str]:
    """Serve the demo backend on the running event loop for as long as the context lasts.

    Gives its root URL, without `/v1`; `pace` is in seconds per streamed token.
    """
    return serve_on_loopback(create_demo(pace=pace))


@asynccontextmanager
async def serve_on_loopback(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on the running event loop; gives its root URL.

    uvicorn's start and stop are called by themselves, without its main loop: that one would take the signal
    handlers away from the server that Spillway itself runs on.
    """
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE
    )
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
