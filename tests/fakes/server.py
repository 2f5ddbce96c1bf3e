"""A real HTTP server on a free loopback port, in a background thread with an event loop of its own."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import uvloop
from typing_extensions import override
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

START_TIMEOUT = 20.0


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which also hands out its transport: fakes drop connections on purpose."""

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["transport"] = self.transport


class BackgroundServer:
    """Serve an ASGI application until `stop`. It can be started again, on the same port.

    uvicorn's own server loop is left out: it wakes ten times a second and takes as long to stop, and the
    tests start hundreds of servers.
    """

    def __init__(self, app: App, *, keep_alive: float = 75.0, place: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._config = Config(
            cast("Any", app), http=_Protocol, interface="asgi3", proxy_headers=False, lifespan="off", ws="none",
            log_config=None, access_log=False, timeout_keep_alive=cast("int", keep_alive),
        )  # fmt: skip
        self._socket = socket.create_server(place, backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self.stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: asyncio.Event | None = None
        self._state = ServerState()
        self._listening: asyncio.Server | None = None

    def start(self) -> None:
        """Serve; returns once connections are accepted."""
        self._ready.clear()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name=f"fake-{self.port}", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT):
            raise RuntimeError("the fake server did not start")

    def stop(self) -> None:
        """Drop every connection and end; returns once the thread has ended."""
        if self._thread is None:
            self._socket.close()
            return
        self.stopping = True
        if self._loop is not None and self._halt is not None:
            self._loop.call_soon_threadsafe(self._halt.set)
        self._thread.join(START_TIMEOUT)
        self._thread = None

    def call(self, action: Callable[[], None]) -> None:
        """Do it where the app runs; returns when it is done. Not to be called by the app."""

        async def done() -> None:
            action()

        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(done(), self._loop).result(START_TIMEOUT)

    @property
    def accepting(self) -> bool:
        return self._listening is not None

    @property
    def connected(self) -> int:
        return len(self._state.connections)

    def refuse(self) -> None:
        """Let nobody in any more, and drop whoever is: as if the program were gone. To be called by the app."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.drop()

    def drop(self) -> None:
        """Reset every connection. To be called by the app."""
        for connection in list(self._state.connections):
            if connection.transport is not None:
                reset(connection.transport)

    def accept(self) -> None:
        """Let in again after `refuse`; returns once connections are accepted. Not to be called by the app."""
        if self._loop is not None and self._listening is None:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_TIMEOUT)

    def __del__(self) -> None:
        self._socket.close()  # of a fake that was only made to count

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._halt = asyncio.Event()
        if not self._config.loaded:
            self._config.load()
        state = self._state = ServerState()
        await self._listen()
        self._ready.set()
        await self._halt.wait()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None

    async def _listen(self) -> None:
        loop, state = asyncio.get_running_loop(), self._state
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self._listening = await loop.create_server(
            lambda: _Protocol(self._config, state, {}, _loop=loop), sock=self._socket, backlog=1024
        )


def reset(transport: asyncio.BaseTransport) -> None:
    """Drop a connection with a TCP reset, so that the other side sees no end but an error."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast("asyncio.Transport", transport).abort()
