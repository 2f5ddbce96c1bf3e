"""Handing a request through untouched, streaming both ways."""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence

import httpx

from proxy.errors import BrokenOff
from proxy.exchange import Exchange, decoded
from proxy.net.headers import Header, response_headers
from proxy.net.upstream import Upstream
from proxy.options import Options
from proxy.stages.routing import Route, Router, is_managed
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


async def left_alone(exchange: Exchange, wire: bytes, router: Router, options: Options) -> Upstream | None:
    """The backend of a chat request that the client or the user wants passed through; None if it is to be managed.

    Raises:
        BadRequest, BodyTooLarge: its content-encoding can't be undone.
    """
    if exchange.header(b"x-spillway-bypass") == "1":
        return await upstream_of(wire, router)
    if options.manages_all and all(upstream.managed for upstream in router.upstreams):
        return None
    route = await _route_of(decoded(wire, exchange.header(b"content-encoding"), options.max_body), router)
    return None if is_managed(route, options) else route.upstream


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
    return (await _route_of(body, router)).upstream


async def _route_of(body: bytes, router: Router) -> Route:
    try:
        parsed = loads(body)
    except ValueError:
        parsed = None
    model = parsed.get("model") if isinstance(parsed, dict) else None
    return await router.route(model) if isinstance(model, str) else Route(router.upstreams[0], "")


def _worth_reading(exchange: Exchange) -> bool:
    length = exchange.header(b"content-length") or ""
    kind = exchange.header(b"content-type") or ""
    return length.isdigit() and 0 < int(length) <= PEEK and "json" in kind


def _upload(exchange: Exchange) -> bytes | AsyncIterable[bytes]:
    """The body as it arrives; none where the request has none (RFC 9112, section 6.3)."""
    has_body = exchange.header(b"transfer-encoding") or exchange.header(b"content-length") not in (None, "0")
    return exchange.body_stream() if has_body else b""
