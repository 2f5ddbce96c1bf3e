"""Scripted HTTP peers for the transport's tests: each test says byte by byte what the server does."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import httpx

from proxy.net.transport import HttpTransport

DEADLINE = 20.0
"""Seconds after which a wait of a test has failed."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Peer:
    """One accepted connection, seen from the server. `number` counts connections from 1."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._reader = reader
        self._writer = writer

    async def head(self) -> bytes:
        """Request line and headers; b"" when the client has gone."""
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def request(self) -> tuple[bytes, bytes]:
        """A request with a Content-Length, or none: head and body."""
        head = await self.head()
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head, await self._reader.readexactly(length)

    async def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        with suppress(ConnectionError):
            while await asyncio.wait_for(self._reader.read(65536), DEADLINE):
                pass

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


class Served:
    """A running scripted server."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.failures: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(script: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """Run `script` for each connection on a free port of 127.0.0.1; a script's failure fails the test."""
    served = Served()
    running: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        peer = Peer(served.connections, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await script(peer)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - kept and raised again in the test
            served.failures.append(error)
        finally:
            running.discard(task)
            await peer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0, ssl=context)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
    if served.failures:
        raise served.failures[0]


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[HttpTransport]:
    defaults: dict[str, Any] = {"connect_timeout": DEADLINE, "read_timeout": DEADLINE}
    transport = HttpTransport(**{**defaults, **settings})
    try:
        yield transport
    finally:
        await transport.aclose()


def post(served: Served, content: bytes = b"hello", *headers: tuple[bytes, bytes]) -> httpx.Request:
    url = f"http://127.0.0.1:{served.port}/v1/x?y=1"
    return httpx.Request("POST", url, headers=list(headers), content=content)


def get(served: Served) -> httpx.Request:
    return httpx.Request("GET", f"http://127.0.0.1:{served.port}/")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
