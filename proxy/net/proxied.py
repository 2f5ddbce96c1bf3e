"""Reaching some backends through an HTTP or SOCKS proxy, by httpx's own transport; all others directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import httpx
from typing_extensions import override

from proxy.net.request import framed_headers
from proxy.net.tasks import spawn
from proxy.net.transport import FRESH


class ProxiedTransport(httpx.AsyncBaseTransport):
    """Sends by a request's origin.

    Args:
        direct: for all origins that have no proxy; closed with this one.
        proxies: root of a backend to the URL of its proxy.
        connect_timeout: seconds to connect, to the proxy and through it.
        read_timeout: seconds of silence after which a response is given up.

    Raises:
        ImportError: a SOCKS proxy, and the package for those is not installed.
        ValueError, httpx.InvalidURL: no URL, or one of a kind that is not known.
    """

    def __init__(
        self,
        direct: httpx.AsyncBaseTransport,
        proxies: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        # As on direct connections: as many as there are requests, and none kept that may be closing.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=FRESH)
        made = {
            proxy: httpx.AsyncHTTPTransport(proxy=proxy, limits=limits) for proxy in set(proxies.values())
        }
        self._direct = direct
        self._made = tuple(made.values())
        self._proxied = {_origin(httpx.URL(root)): made[proxy] for root, proxy in proxies.items()}
        self._timeout = httpx.Timeout(read_timeout, connect=connect_timeout, pool=None).as_dict()

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and give the response as soon as its head is there; its `stream` must be closed.

        Raises:
            httpx.TransportError: no connection, or no response.
        """
        proxied = self._proxied.get(_origin(request.url))
        if proxied is None:
            return await self._direct.handle_async_request(request)
        complete, seconds = self._complete(request), self._seconds(request)
        upload = None if isinstance(request.stream, httpx.ByteStream) else _Upload(request.stream, seconds)
        if upload is not None:
            complete.stream = upload
        try:
            # The library waits for as long as something comes, be it one 1xx response after the other.
            async with asyncio.timeout(seconds if upload is None else None) as deadline:
                if upload is not None:
                    upload.deadline = deadline
                response = await proxied.handle_async_request(complete)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no response within {seconds:g} s") from None
        response.stream = _Download(response.stream)
        return response

    @override
    async def aclose(self) -> None:
        """Close every connection."""
        for transport in (self._direct, *self._made):
            await transport.aclose()

    def _seconds(self, request: httpx.Request) -> float:
        """How long it may take to connect and get a response, once the request is sent."""
        given = {**self._timeout, **(request.extensions.get("timeout") or {})}
        return float((given["connect"] or 0) + (given["read"] or 0))

    def _complete(self, request: httpx.Request) -> httpx.Request:
        """The request with what the direct transport adds on the wire by itself, and its target in the URL."""
        target = request.extensions.get("target")
        return httpx.Request(
            request.method,
            request.url if target is None else request.url.copy_with(raw_path=target),
            headers=framed_headers(request),
            stream=request.stream,
            extensions={"timeout": request.extensions.get("timeout") or self._timeout},
        )


class _Upload(httpx.AsyncByteStream):
    """A body that is produced while it is sent: only when it is out does the time for the response begin."""

    deadline: asyncio.Timeout

    def __init__(self, stream: object, seconds: float) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream
        self._seconds = seconds

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part
        self.deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)


class _Download(httpx.AsyncByteStream):
    """A body that is closed whole, though who closes it be cancelled: the library would leave the connection open, and in use."""

    def __init__(self, stream: object) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    @override
    async def aclose(self) -> None:
        await asyncio.shield(spawn(self._stream.aclose(), name="close"))


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
