"""Reaching some backends through an HTTP or SOCKS proxy, by httpx's own transport; all others directly."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from typing_extensions import override

from proxy.net.request import framed_headers
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
        return await proxied.handle_async_request(self._complete(request))

    @override
    async def aclose(self) -> None:
        """Close every connection."""
        for transport in (self._direct, *self._made):
            await transport.aclose()

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


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
