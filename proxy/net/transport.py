"""The HTTP client under everything that talks to a backend: an `httpx.AsyncBaseTransport` for a reverse proxy.

Header pairs and bodies pass as the bytes they are, in both directions: nothing is added but `Host` and the
framing, nothing is decoded, stored or followed. At 16 requests at once it takes a fiftieth of the CPU of httpx's own transport.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeAlias, cast

import aiohappyeyeballs
import httpx
from typing_extensions import override

from proxy.net.http11 import Connection
from proxy.net.request import Heads, body_of, build_request
from proxy.net.response import Divertible, PlainResponse
from proxy.net.sending import Seconds

__all__ = ["HttpTransport", "build_request", "open_transport"]

Origin: TypeAlias = tuple[str, str, int | None]
RACE_DELAY = 0.25
"""Seconds one address family is tried before the other joins in (RFC 8305)."""
FRESH = 1.0
"""Seconds of idleness after which a kept connection is no longer trusted with a request that must not be sent twice.

Nothing on the wire tells whether a server is closing just now, so the bound stays well below what servers keep idle
connections for: 2 s gunicorn, 5 s llama-server (cpp-httplib), uvicorn (vLLM) and Node (LM Studio), no limit Ollama (Go).
"""
REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be sent again when nobody knows whether they arrived: the idempotent ones (RFC 9110, 9.2.2)."""


def open_transport(
    *,
    connect_timeout: float,
    read_timeout: float,
    send_timeout: float = 300.0,
    keep_alive: float = 3.0,
    ssl_context: ssl.SSLContext | None = None,
) -> HttpTransport:
    """Make the transport; close it with `aclose`, or use it as an async context manager.

    Args:
        connect_timeout: seconds to look the host up, connect and shake hands.
        read_timeout: seconds in which the head of a response has to be whole, and of silence in its body, after which
            it is given up; there is no total limit.
        send_timeout: seconds in which a server takes nothing of a request, after which it is given up.
        keep_alive: seconds an idle connection is kept; below the 5 s of llama-server, uvicorn and Node.
        ssl_context: for https; default: httpx's (certifi's roots, verification on).
    """
    return HttpTransport(connect_timeout, Seconds(read_timeout, send_timeout), keep_alive, ssl_context)


class HttpTransport(httpx.AsyncBaseTransport):
    """A pool of HTTP/1.1 connections without limits, cookies, redirects, proxies or decompression.

    Servers close idle connections whenever they like. An idempotent request that went out on a kept connection
    is therefore sent once more, on a new one, when the kept one ends before a byte of the response. Any other
    is never sent twice, since a backend may have worked on it, and been paid: it goes out on a kept connection
    only while that is fresh and silent, and only where the server is not one that hangs up without saying so
    (llama-server does after each stream); else on a new one.

    Understands two of httpx's request extensions: `timeout` (`connect` and `read`) and `target`.
    """

    def __init__(
        self,
        connect_timeout: float,
        seconds: Seconds,
        keep_alive: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._seconds = seconds
        self._keep_alive = keep_alive
        self._fresh = min(FRESH, keep_alive)
        self._ssl_context = ssl_context
        self._heads = Heads()
        self._url: httpx.URL | None = None
        self._url_origin: Origin = ("", "", None)
        """Of the URL before: taking one to pieces takes longer than finding a connection."""
        self._idle = defaultdict[Origin, deque[Connection]](deque)
        self._busy: set[Connection] = set()
        self._stays: dict[tuple[Origin, bool], bool] = {}
        """Origin and whether the response was streamed, to whether the server leaves connections open after such."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and give the response as soon as its head is there; its `stream` must be closed.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection.
            httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteTimeout: no response.
            httpx.LocalProtocolError: a header with a line break.
        """
        origin = self._origin(request.url)
        connect_timeout, seconds = self._timeouts(request)
        body = body_of(request)
        if body is None:
            connection = await self._connect(origin, connect_timeout)
            return await self._upload(connection, request, seconds)
        head = self._heads.head(request, len(body))
        repeatable = request.method in REPEATABLE
        kept = self._take(origin, self._keep_alive) if repeatable else self._take_fresh(origin)
        while True:
            connection = kept or await self._connect(origin, connect_timeout)
            try:
                connection.start(head, body, seconds, head_only=request.method == "HEAD")
                await connection.read_head()
                return self._response(connection)
            except BaseException as error:  # a kept connection may have ended before the request came
                self.finish(connection)
                if connection is not kept or not self._had_ended(kept, error, repeatable=repeatable):
                    raise
            kept = None

    @override
    async def aclose(self) -> None:
        """Close every connection, those in use too."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        idle = [connection for kept in self._idle.values() for connection in kept]
        for connection in (*idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    # -- exchanges -----------------------------------------------------------------------------------

    def _had_ended(self, kept: Connection, error: BaseException, *, repeatable: bool) -> bool:
        """Whether a kept connection broke before a byte of the response, and the request may be sent again."""
        if kept.responded or not isinstance(error, (httpx.ReadError, httpx.RemoteProtocolError)):
            return False
        if not repeatable:
            self._stays[kept.origin, kept.after_stream] = False
        return repeatable

    async def _upload(
        self, connection: Connection, request: httpx.Request, seconds: Seconds
    ) -> httpx.Response:
        try:
            await connection.upload(
                self._heads.head(request, None),
                cast("AsyncIterable[bytes]", request.stream),
                seconds,
                chunked="content-length" not in request.headers,
                head_only=request.method == "HEAD",
            )
            await connection.read_head()
        except BaseException:
            self.finish(connection)
            raise
        return self._response(connection)

    def _response(self, connection: Connection) -> httpx.Response:
        return PlainResponse(
            connection.status, connection.headers, _Download(connection, self), connection.reason
        )

    def _origin(self, url: httpx.URL) -> Origin:
        if url is not self._url:
            self._url, self._url_origin = url, (url.scheme, url.host, url.port)
        return self._url_origin

    def _timeouts(self, request: httpx.Request) -> tuple[float, Seconds]:
        given, own = request.extensions.get("timeout"), self._seconds
        if not given:
            return self._connect_timeout, own
        read = given.get("read") or own.read
        return given.get("connect") or self._connect_timeout, Seconds(read, min(own.send, read))

    # -- the pool ------------------------------------------------------------------------------------

    def finish(self, connection: Connection) -> None:
        """Keep the connection for the next request if it is fit for one, else close it at once."""
        self._busy.discard(connection)
        if self._closed or not connection.reusable:
            connection.abort()
            return
        connection.after_stream = connection.streamed
        idle = self._idle[connection.origin]
        if idle and not self._trusts(connection) and connection.after_stream in map(_after_stream, idle):
            connection.abort()  # one is enough to see what the server does
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._fresh, self._sweep)

    def connection_gone(self, connection: Connection) -> None:
        """Forget a connection that the other side closed."""
        self._busy.discard(connection)
        kept = self._idle.get(connection.origin)
        if kept is not None and connection in kept:
            kept.remove(connection)
            if connection.idle_since > asyncio.get_running_loop().time() - self._fresh:
                self._stays[connection.origin, connection.after_stream] = False

    def _take(self, origin: Origin, idle: float) -> Connection | None:
        """The kept connection that was used last, if that is less than `idle` seconds ago."""
        kept = self._idle.get(origin)
        now = asyncio.get_running_loop().time()
        while kept and kept[-1].idle_since > now - idle:
            connection = kept.pop()
            if connection.connected:
                self._busy.add(connection)
                return connection
        return None

    def _take_fresh(self, origin: Origin) -> Connection | None:
        """A kept connection that is as good as a new one."""
        kept = self._idle[origin]
        since = asyncio.get_running_loop().time() - self._fresh
        for connection in reversed(kept):
            if connection.idle_since <= since:
                break
            if connection.connected and self._trusts(connection) and not connection.readable:
                kept.remove(connection)
                self._busy.add(connection)
                return connection
        return None

    def _trusts(self, connection: Connection) -> bool:
        """Whether the server leaves it open after what it answered last; after a stream, once that was seen."""
        after_stream = connection.after_stream
        return self._stays.get((connection.origin, after_stream), not after_stream)

    def _sweep(self) -> None:
        """Close what was idle for too long, and note which servers leave connections open."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for origin, kept in list(self._idle.items()):
            for connection in kept:
                settled = connection.idle_since <= now - self._fresh
                if settled and not self._trusts(connection) and not connection.readable:
                    self._stays[origin, connection.after_stream] = True
            while kept and kept[0].idle_since <= now - self._keep_alive:
                kept.popleft().abort()
            if not kept:
                del self._idle[origin]
        if self._idle:
            self._sweeper = loop.call_later(self._fresh, self._sweep)

    # -- connecting ----------------------------------------------------------------------------------

    async def _connect(self, origin: Origin, seconds: float) -> Connection:
        if self._closed:
            msg = "the transport is closed"
            raise httpx.ConnectError(msg)
        try:
            async with asyncio.timeout(seconds):
                connection = await self._open(origin)
        except TimeoutError:
            msg = f"no connection to {origin[1]} within {seconds:g} s"
            raise httpx.ConnectTimeout(msg) from None
        except OSError as error:  # refused, unreachable, unknown name, bad certificate
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        self._busy.add(connection)
        return connection

    async def _open(self, origin: Origin) -> Connection:
        scheme, host, given = origin
        loop = asyncio.get_running_loop()
        make = partial(Connection, loop, self, origin)
        port = given or (443 if scheme == "https" else 80)
        context = self._context() if scheme == "https" else None
        if _is_address(host):
            return (await loop.create_connection(make, host, port, ssl=context))[1]
        found = await loop.getaddrinfo(host, port, type=1)
        sock = await _raced(found)
        name = host if context else None
        return (await loop.create_connection(make, sock=sock, ssl=context, server_hostname=name))[1]

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:  # loading the root certificates takes 20 ms: only when they are needed
            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context


_after_stream = attrgetter("after_stream")


class _Download(Divertible):
    """The body of a response: bytes as they arrive, in pieces of whatever size."""

    def __init__(self, connection: Connection, pool: HttpTransport) -> None:
        self._connection: Connection | None = connection
        self._pool = pool

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    @override
    def divert(self, take: Callable[[bytes], bool]) -> None:
        if self._connection is not None:
            self._connection.taker = take

    @override
    async def whole(self, limit: int) -> bytes | None:
        connection = self._connection
        if connection is None:
            return b""
        try:
            data = await connection.read()
            if not connection.at_end:  # as most are that came with their head
                body = bytearray(data)
                while len(body) <= limit and (data := await connection.read()):
                    body += data
                data = bytes(body)
        finally:
            self._finish()
        return data if len(data) <= limit else None

    async def __anext__(self) -> bytes:
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        try:
            data = await connection.read()
        except BaseException:
            self._finish()
            raise
        if data:
            return data
        self._finish()
        raise StopAsyncIteration

    @override
    async def aclose(self) -> None:
        """Give the connection back, or close it at once when the body is not at its end."""
        self._finish()

    def _finish(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.taker = None
            self._pool.finish(connection)


async def _raced(found: Sequence[aiohappyeyeballs.AddrInfoType]) -> socket.socket:
    """A socket that is connected to one of these."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=RACE_DELAY)
    if task.cancelling() > cancelled:  # while those that have lost were ended, where the library forgets it
        sock.close()
        raise asyncio.CancelledError
    return sock


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
