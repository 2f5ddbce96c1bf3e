"""The HTTP client under everything that talks to a backend: httpx over aiohttp's connections, for a reverse proxy.

aiohttp parses, pools, races addresses (RFC 8305) and goes through proxies; httpx's `Request` and `Response` are what the
rest of the proxy works with, and its `AsyncBaseTransport` is the seam for tests.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from typing_extensions import override

KEEP_ALIVE = 1.0
"""Seconds an idle connection over TLS is used again.

A POST must not be sent twice, so it must not meet a server that is just closing: below the 2 s of gunicorn and the 5 s of
uvicorn and Node. aiohttp repeats idempotent requests by itself.
"""
PIECE = 512 * 1024
"""Bytes of a request body written at a time; aiohttp objects to 1 MiB and more."""
HEADER_BYTES = 65_536
"""Longest header of a response; aiohttp's own limit of 8 kB is less than some gateways send."""
_ADDED_BY_AIOHTTP = ("accept", "accept-encoding", "content-type", "user-agent")


class InvalidResponse(httpx.RemoteProtocolError):
    """A server's bytes are no HTTP/1.1 response."""


class HttpTransport(AiohttpTransport):
    """A pool of HTTP/1.1 connections without a limit, cookies, redirects or decompression.

    Args:
        connect_timeout: seconds to look the host up, connect and shake hands.
        read_timeout: seconds in which the server has to take a request and begin its response, and of silence in the
            body of a response; there is no limit on the total.
        ssl_context: for https; default: certifi's roots, verified.
        proxy: URL of an HTTP proxy that every request goes through.
        reuse: use connections again. llama-server closes each one after a stream without a word, and a new connection to a
            server nearby costs 0.1 ms, so this is for TLS.
    """

    def __init__(
        self,
        *,
        connect_timeout: float,
        read_timeout: float,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | None = None,
        reuse: bool = False,
    ) -> None:
        super().__init__(verify=ssl_context or True, proxy=None if proxy is None else httpx.Proxy(proxy))
        self._timeout = httpx.Timeout(read_timeout, connect=connect_timeout, pool=None).as_dict()
        self._reuse = reuse
        self._closed = False
        self.open: set[Download] = set()
        """Bodies of responses that were neither read to their end nor closed."""

    @override
    def get_client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=self.ssl_context,
                keepalive_timeout=KEEP_ALIVE if self._reuse else None,
                force_close=not self._reuse,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and return the response once its head is there; its stream must be closed.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection.
            httpx.ReadTimeout, httpx.ReadError, InvalidResponse: no response.
            httpx.LocalProtocolError: a header contains a line break.
        """
        if self._closed:
            raise httpx.ConnectError("the transport is closed")
        timeout = request.extensions.setdefault("timeout", self._timeout)
        seconds = None if timeout["read"] is None else (timeout["connect"] or 0) + timeout["read"]
        try:
            with httpx_errors():
                async with asyncio.timeout(seconds) as deadline:
                    request = _in_pieces(request, deadline, seconds)
                    response = await super().handle_async_request(request)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no response within {seconds:g} s") from None
        response.stream = Download(response.stream, timeout["read"], self.open)
        return response

    @override
    async def aclose(self) -> None:
        """Close every connection, those in use too."""
        self._closed = True
        await super().aclose()


class TransportByOrigin(httpx.AsyncBaseTransport):
    """Sends some origins' requests over transports of their own, e.g. through a proxy.

    Args:
        default: for every other origin.
        transports: by URL of the origin, e.g. `https://openrouter.ai`.
    """

    def __init__(self, default: httpx.AsyncBaseTransport, transports: Mapping[str, httpx.AsyncBaseTransport]) -> None:
        self._default = default
        self._transports = {_origin(httpx.URL(url)): transport for url, transport in transports.items()}

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; see `HttpTransport` for errors."""
        transport = self._transports.get(_origin(request.url), self._default)
        return await transport.handle_async_request(request)

    @override
    async def aclose(self) -> None:
        """Close every connection."""
        for transport in (self._default, *self._transports.values()):
            await transport.aclose()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _in_pieces(request: httpx.Request, deadline: asyncio.Timeout, seconds: float | None) -> httpx.Request:
    """Send a large body, or one that is produced meanwhile, piece by piece; each that the server takes moves the deadline."""
    stream: object = request.stream
    if isinstance(stream, httpx.ByteStream):
        body = request.content
        if len(body) <= PIECE:
            return request
        request.headers["content-length"] = str(len(body))
        stream = _cut(body)
    assert isinstance(stream, AsyncIterable)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in stream:
            if seconds is not None:
                deadline.reschedule(asyncio.get_running_loop().time() + seconds)
            yield piece

    return httpx.Request(
        request.method, request.url, headers=request.headers, content=pieces(), extensions=request.extensions
    )


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), PIECE):
        yield body[at : at + PIECE]


class Download(httpx.AsyncByteStream):
    """The body of a response, in pieces as they arrive. Closing it before its end closes the connection.

    Silence is timed here: where chunks are broken, aiohttp 3.14 closes the connection and never wakes the reader.
    """

    def __init__(self, stream: object, seconds: float | None, registry: set[Download]) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream
        self._seconds = seconds
        self._registry = registry
        registry.add(self)

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._stream)
        while True:
            try:
                with httpx_errors():
                    async with asyncio.timeout(self._seconds):
                        piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise httpx.ReadTimeout(f"no more of the response within {self._seconds:g} s") from None
            yield piece

    @override
    async def aclose(self) -> None:
        self._registry.discard(self)
        await self._stream.aclose()


@contextmanager
def httpx_errors() -> Iterator[None]:
    """Translate what aiohttp raises into httpx's errors, finer than httpx-aiohttp does: a reset is no timeout there.

    Raises:
        httpx.TransportError: the translated error.
    """
    try:
        yield
    except (httpx.TransportError, aiohttp.ClientError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, httpx.TransportError) else error
        raise _translated(cause, error) from cause


def _translated(cause: BaseException | None, error: Exception) -> Exception:
    text = str(error) or type(cause or error).__name__
    match cause:
        case aiohttp.ClientConnectorError():
            return httpx.ConnectError(text)
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(text)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return httpx.ReadError(text)
        case aiohttp.ClientResponseError():
            return InvalidResponse(cause.message or text)
        case ValueError() if not isinstance(cause, aiohttp.ClientError):
            return httpx.LocalProtocolError(text)
        case _:
            return error
