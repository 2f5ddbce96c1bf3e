"""Handing a request through untouched, streaming both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import TypeAlias

import httpx

from proxy.errors import BrokenOff, ClientError, UpstreamInvalid, UpstreamUnavailable
from proxy.exchange import Exchange
from proxy.net.headers import AS_JSON, Header, headers_of
from proxy.net.responses import is_event_stream
from proxy.settings import Settings
from proxy.stages.naming import Addressed, address, address_read
from proxy.stages.routing import Route, Router, has_path, is_managed
from proxy.telemetry.outcome import Outcome

ErrorEnding: TypeAlias = Callable[[ClientError], bytes]
"""Makes the end of a stream that ends with an error."""

_BETWEEN_FRAMES = (b"\n\n", b"\r\n\r\n")


def failure(error: UpstreamUnavailable) -> str:
    """Code of a backend's failure to be reached or to finish, for the outcome."""
    return error.code or type(error).__name__


async def pass_through(
    exchange: Exchange,
    outcome: Outcome,
    route: Route,
    body: bytes | AsyncIterable[bytes],
    ending: ErrorEnding | None = None,
) -> None:
    """Send the request as it is and the response as it comes; `ending` is for a stream that the server has to end.

    Raises:
        UpstreamUnavailable: the backend can't be reached, or broke off before anything was sent.
    """
    upstream = route.upstream
    outcome.record_route(upstream.name, route.model)
    outcome.record_sent("passed on")
    try:
        headers = outcome.traced(exchange.headers)
        response = await upstream.send(exchange.method, exchange.target, headers, body)
    except UpstreamUnavailable as error:
        outcome.record_failure(failure(error))
        raise
    outcome.record_first_byte()
    await relay_response(exchange, response, ending=ending)


async def relay_response(
    exchange: Exchange,
    response: httpx.Response,
    own: Sequence[Header] = (),
    *,
    ending: ErrorEnding | None = None,
) -> None:
    """Pass a response on as it comes, with Spillway's `own` headers added.

    Raises:
        UpstreamInvalid: it can't be passed on, because a heartbeat has opened an answer of Spillway's own.
        ShuttingDown: the server is being stopped; the stream has its ending, if it is one and stood between two frames.
        BrokenOff: the body broke off after the status went out.
    """
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    if exchange.started:
        await response.aclose()
        raise UpstreamInvalid("The backend's answer came late, and in an encoding that is not known here.")
    data = b""
    try:
        await exchange.start(response.status_code, [*headers_of(response), *own])
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
    exchange: Exchange, wire: bytes, router: Router, settings: Settings
) -> tuple[Route, bytes | AsyncIterable[bytes]] | None:
    """Where a chat request goes that the client or the user wants passed through, and its body; None if it is managed.

    The body is the client's own, but for a model that its backend knows by another id.

    Raises:
        BadRequest, BodyTooLarge: see `address_read`.
    """
    bypassed = exchange.header(b"x-spillway-bypass") == "1"
    if not bypassed and settings.manages_all and router.manages_all:
        return None
    to = await address_read(exchange, router, wire, settings.max_body, asks=not bypassed)
    if not bypassed and is_managed(to.route, settings):
        return None
    return to.route, _body(exchange, to)


async def pass_by_model(exchange: Exchange, outcome: Outcome, router: Router, limit: int) -> None:
    """Pass a request to the backend of the model that it names, else to the one whose path it is, else to the first.

    Raises:
        BadRequest, BodyTooLarge: see `address`.
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    to = await address(exchange, router, limit)
    with exchange.watched():
        await pass_to(exchange, outcome, to)


async def pass_on(
    exchange: Exchange,
    outcome: Outcome,
    router: Router,
    wire: bytes,
    limit: int,
    otherwise: Callable[[], bytes],
) -> None:
    """The same for a request whose body was read; `otherwise` is the answer of a backend that has no such path.

    Raises:
        BadRequest, BodyTooLarge: see `address_read`.
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    to = await address_read(exchange, router, wire, limit, asks=True)
    if not await has_path(to.route.upstream, exchange.path):
        outcome.record_route(to.route.upstream.name, to.route.model)
        await exchange.reply(200, [AS_JSON], otherwise())
        return
    await pass_to(exchange, outcome, to)


async def pass_to(exchange: Exchange, outcome: Outcome, to: Addressed) -> None:
    """The same for one of which is known where it goes.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: see `pass_through`.
    """
    await pass_through(exchange, outcome, to.route, _body(exchange, to))


def _body(exchange: Exchange, to: Addressed) -> bytes | AsyncIterable[bytes]:
    """The body to send; the headers that go with it no longer tell of an encoding that was undone."""
    if to.plain:
        exchange.headers = [each for each in exchange.headers if each[0] != b"content-encoding"]
    return to.body
