"""Handing a request through untouched, streaming both ways."""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence

import httpx

from proxy.errors import BrokenOff
from proxy.exchange import Exchange
from proxy.net.headers import Header, response_headers
from proxy.net.upstream import Upstream
from proxy.stages.routing import Router
from proxy.wire.jsontext import loads

PEEK = 8 * 2**20
"""Bytes of a JSON body that are read to see which model it names."""


async def pass_through(exchange: Exchange, upstream: Upstream, body: bytes | AsyncIterable[bytes]) -> None:
    """Send the request as it is and the response as it comes.

    Raises:
        UpstreamUnavailable: the backend can't be reached, or broke off before anything was sent.
    """
    await relay_response(
        exchange, await upstream.send(exchange.method, exchange.target, exchange.headers, body)
    )


async def relay_response(exchange: Exchange, response: httpx.Response, own: Sequence[Header] = ()) -> None:
    """Pass a response on as it comes, with Spillway's `own` headers added.

    Raises:
        BrokenOff: the body broke off after the status went out.
    """
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        await exchange.start(response.status_code, [*response_headers(response.headers.raw), *own])
        async for data in stream:
            await exchange.write(data)
    except httpx.TransportError as error:
        # Status and part of the body are out: the client is shown the same broken body that came.
        raise BrokenOff from error
    finally:
        await response.aclose()
    await exchange.end()


async def pass_by_model(exchange: Exchange, router: Router) -> None:
    """Pass a request to the backend of the model that its JSON body names, else to the first backend.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    if not _worth_reading(exchange):
        await pass_through(exchange, router.upstreams[0], _upload(exchange))
        return
    body = await exchange.body(PEEK)
    async with exchange.watched():
        upstream = await upstream_of(body, router)
        await pass_through(exchange, upstream, body)


async def upstream_of(body: bytes, router: Router) -> Upstream:
    """The backend of the model that a JSON body names; the first one if it names none."""
    try:
        parsed = loads(body)
    except ValueError:
        return router.upstreams[0]
    model = parsed.get("model") if isinstance(parsed, dict) else None
    return (await router.route(model)).upstream if isinstance(model, str) else router.upstreams[0]


def _worth_reading(exchange: Exchange) -> bool:
    length = exchange.header(b"content-length") or ""
    kind = exchange.header(b"content-type") or ""
    return length.isdigit() and 0 < int(length) <= PEEK and "json" in kind


def _upload(exchange: Exchange) -> bytes | AsyncIterable[bytes]:
    """The body as it arrives; none where the request has none (RFC 9112, section 6.3)."""
    has_body = exchange.header(b"transfer-encoding") or exchange.header(b"content-length") not in (None, "0")
    return exchange.body_stream() if has_body else b""
