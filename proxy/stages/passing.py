"""Handing a request through untouched, streaming both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, TypeAlias

import httpx

from proxy.errors import BrokenOff, ClientError, UpstreamUnavailable
from proxy.exchange import Exchange
from proxy.net.headers import Header, response_headers
from proxy.net.responses import is_event_stream
from proxy.options import Options
from proxy.stages.routing import Route, Router, is_managed
from proxy.telemetry.events import BackendFailed, FirstByte, Routed, Sent
from proxy.telemetry.journal import Journal
from proxy.wire.jsontext import dumps, loads

Ending: TypeAlias = Callable[[ClientError], bytes]
"""Makes the end of a stream that ends with an error."""

_BETWEEN_FRAMES = (b"\n\n", b"\r\n\r\n")

PEEK = 8 * 2**20
"""Bytes of a JSON body that are read to see which model it names."""


def failure(error: UpstreamUnavailable) -> BackendFailed:
    """A backend that could not be reached, or broke off, as an event."""
    return BackendFailed(error.code or type(error).__name__)


async def pass_through(
    exchange: Exchange,
    journal: Journal,
    route: Route,
    body: bytes | AsyncIterable[bytes],
    ending: Ending | None = None,
) -> None:
    """Send the request as it is and the response as it comes; `ending` is for a stream that the server has to end.

    Raises:
        UpstreamUnavailable: the backend can't be reached, or broke off before anything was sent.
    """
    upstream = route.upstream
    journal.tell(Routed(upstream.name, route.model))
    journal.tell(Sent("passed on"))
    try:
        response = await upstream.send(exchange.method, exchange.target, exchange.headers, body)
    except UpstreamUnavailable as error:
        journal.tell(failure(error))
        raise
    journal.tell(FirstByte())
    await relay_response(exchange, response, ending=ending)


async def relay_response(
    exchange: Exchange,
    response: httpx.Response,
    own: Sequence[Header] = (),
    *,
    ending: Ending | None = None,
) -> None:
    """Pass a response on as it comes, with Spillway's `own` headers added.

    Raises:
        ShuttingDown: the server is being stopped; the stream has its ending, if it is one and stood between two frames.
        BrokenOff: the body broke off after the status went out.
    """
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    data = b""
    try:
        await exchange.start(response.status_code, [*response_headers(response.headers.raw), *own])
        async for data in stream:
            await exchange.write(data)
    except asyncio.CancelledError:
        if (stopped := exchange.stopped()) is None:
            raise
        if ending is not None and is_event_stream(response) and data.endswith(_BETWEEN_FRAMES):
            await exchange.write(ending(stopped))
            await exchange.end()
        raise stopped from None
    except httpx.TransportError as error:
        # Status and part of the body are out: the client is shown the same broken body that came.
        raise BrokenOff from error
    finally:
        await response.aclose()
    await exchange.end()


async def left_alone(
    exchange: Exchange, wire: bytes, router: Router, options: Options
) -> tuple[Route, bytes] | None:
    """Where a chat request goes that the client or the user wants passed through, and its body; None if it is managed.

    The body is the client's own, but for a model that its backend knows by another id.

    Raises:
        BadRequest, BodyTooLarge: its content-encoding can't be undone.
    """
    bypassed = exchange.header(b"x-spillway-bypass") == "1"
    if not bypassed and options.manages_all and router.manages_all:
        return None
    encoding = exchange.header(b"content-encoding")
    parsed = _parsed(wire if bypassed and not encoding else exchange.decoded(wire, options.max_body))
    route = await _route_of(parsed, router)
    if not bypassed and is_managed(route, options):
        return None
    model = parsed.get("model")
    renamed = encoding is None and isinstance(model, str) and model != route.model
    return route, dumps({**parsed, "model": route.model}) if renamed else wire


async def pass_by_model(exchange: Exchange, journal: Journal, router: Router) -> None:
    """Pass a request to the backend of the model that its JSON body names, else to the first backend.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    if not _worth_reading(exchange):
        upload = _upload(exchange)
        async with exchange.watched():
            await pass_through(exchange, journal, Route(router.upstreams[0], ""), upload)
        return
    body = await exchange.body(PEEK)
    async with exchange.watched():
        await pass_on(exchange, journal, router, body)


async def pass_on(exchange: Exchange, journal: Journal, router: Router, body: bytes) -> None:
    """Pass a request whose body was read to the backend of the model that it names, else to the first backend.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    await pass_through(exchange, journal, await _route_of(_parsed(body), router), body)


def _parsed(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty for anything else."""
    try:
        parsed = loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


async def _route_of(parsed: dict[str, Any], router: Router) -> Route:
    model = parsed.get("model")
    return await router.route(model) if isinstance(model, str) else Route(router.upstreams[0], "")


def _worth_reading(exchange: Exchange) -> bool:
    length = exchange.header(b"content-length") or ""
    kind = exchange.header(b"content-type") or ""
    return length.isdigit() and 0 < int(length) <= PEEK and "json" in kind


def _upload(exchange: Exchange) -> bytes | AsyncIterable[bytes]:
    """The body as it arrives; none where the request has none (RFC 9112, section 6.3)."""
    has_body = exchange.header(b"transfer-encoding") or exchange.header(b"content-length") not in (None, "0")
    return exchange.upload() if has_body else b""
