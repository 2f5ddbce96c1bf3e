"""Handing a request through untouched, streaming both ways."""

import asyncio
import re
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import httpx

from proxy.conversation_state import LARGE
from proxy.core.errors import BadRequest, BrokenOff, ClientError, UpstreamUnavailable
from proxy.core.jsontext import BadText, dumps, loads_text
from proxy.exchange import Exchange
from proxy.net.headers import OF_ENCODING, response_headers
from proxy.net.transport import is_event_stream
from proxy.net.upstream import SAFE
from proxy.outcome import Outcome
from proxy.routing import Route, Router

ErrorEnding: TypeAlias = Callable[[ClientError], bytes]
"""Makes the end of a stream that ends with an error."""

_BETWEEN_FRAMES = (b"\n\n", b"\r\n\r\n")


async def pass_through(
    exchange: Exchange,
    outcome: Outcome,
    to: "Addressed",
    end: ErrorEnding | None = None,
    hear: Callable[[bytes], None] | None = None,
) -> None:
    """Send the request unchanged and the response as it comes.

    `end` makes the ending of a stream that the server has to end; `hear` gets each part of the body that was written.

    Raises:
        UpstreamUnavailable: the backend can't be reached, or broke off before anything was sent.
        ShuttingDown: the server is being stopped; a stream that was between two frames has got its ending.
        BrokenOff: the body broke off after the status was sent.
    """
    upstream = to.route.upstream
    looks = exchange.method in SAFE
    outcome.record_route(to.route.key, upstream.name, listed=to.route.listed is not None, looks=looks)
    outcome.add("sent", why="passed on", stream=False)
    try:
        headers = outcome.traced(exchange.headers)
        response = await upstream.send(
            exchange.method, exchange.target, headers, to.body, drop=OF_ENCODING if to.plain else frozenset()
        )
    except UpstreamUnavailable as error:
        outcome.add("backend_failed", error=error.label)
        raise
    outcome.add("first_byte")
    stream, data = response.stream, b""
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        await exchange.start(response.status_code, response_headers(response.headers.raw))
        async for data in stream:
            await exchange.write(data)
            if hear is not None:
                hear(data)
    except asyncio.CancelledError:
        if (stopped := exchange.take_cancellation()) is None:
            raise
        if end is not None and is_event_stream(response) and data.endswith(_BETWEEN_FRAMES):
            await exchange.write(end(stopped))
            await exchange.end()
        raise stopped from None
    except httpx.TransportError as error:
        # Status and part of the body are sent: the client sees the same broken body.
        raise BrokenOff from error
    finally:
        await response.aclose()
    await exchange.end()


_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,65536}\{")
_BOUNDARY = re.compile(r'multipart/form-data\b.*;\s*boundary="?([^\s";]{1,70})', re.IGNORECASE)
_FIELD = re.compile(
    rb'(?:[^\r\n]{1,512}\r\n){0,4}?[^\r\n]{1,512}\bname="?model"?\r\n(?:[^\r\n]{1,512}\r\n){0,4}\r\n([^\r\n]{1,512})\r\n'
)
"""Part of a form (RFC 7578) that names the model, as in requests for transcriptions."""
_PARTS = 1000
"""Most parts of a form that are examined."""
_OPEN = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,65536}(?:\{|--|\Z)|\xef\xbb?\Z|-\Z")
"""Beginning of a body that may still turn out to be an object or a form."""
_SNIFFED = 512
"""Bytes at the beginning of a body by which its type is recognised."""
_NAMES = ("model", "name", "source")
"""Fields that name a model; all but the first only in Ollama's own requests."""
_ENDS = 4096
"""Bytes at each end of a large body that are searched for such a field."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """Route of a request and the body to send: as it came, or with the backend's own model id in it."""

    route: Route
    body: bytes | AsyncIterable[bytes]
    plain: bool = False
    """Whether the body was decoded, so that its content-encoding no longer applies."""


async def address(exchange: Exchange, router: Router, limit: int) -> Addressed:
    """Find the route of a request, reading no more of its body than that takes.

    A JSON object, whatever its content type, and a compressed body are read whole, up to `limit` bytes. A form that does not
    begin with its model is read up to `limit` if there are several backends. Of any other body only the beginning is read,
    and the rest is passed on as it arrives.

    Raises:
        BadRequest: the JSON contains invalid text.
        BodyTooLarge: the body is larger than `limit`.
    """
    beginning = await exchange.peek(_SNIFFED, _OPEN.match)
    if exchange.header(b"content-encoding") or _OBJECT.match(beginning):
        return await address_read(exchange, router, await exchange.body(limit), limit, needs_model=False)
    if not beginning:
        return Addressed(await router.unnamed(exchange.path), b"")
    form = _BOUNDARY.match(exchange.header(b"content-type") or "")
    boundary = form[1].encode("latin-1") if form is not None else b""
    field = _model_in(beginning, boundary)
    if boundary and field is None and len(router.upstreams) > 1 and not exchange.is_longer_than(limit):
        beginning = await exchange.peek(limit)
        field = _model_in(beginning, boundary)
    if field is None:
        return Addressed(await router.unnamed(exchange.path), exchange.upload())
    route = await router.route(field[1].decode("utf-8", "replace"))
    model_id = route.model.encode()
    if model_id != field[1]:
        exchange.replace_beginning(beginning[: field.start(1)] + model_id + beginning[field.end(1) :])
    return Addressed(route, exchange.upload())


async def address_read(exchange: Exchange, router: Router, wire: bytes, limit: int, *, needs_model: bool) -> Addressed:
    """Find the route of a request whose body was read. With `needs_model`, a request that names none gets the default model.

    Raises:
        BadRequest: the JSON contains invalid text.
        BodyTooLarge: the body, decoded, is larger than `limit`.
    """
    try:
        body = await exchange.decoded(wire, limit)
    except BadRequest:
        return Addressed(await router.unnamed(exchange.path), wire)
    names = _NAMES if exchange.path.startswith("/api/") else _NAMES[:1]
    field = _field_at_ends(body, names) if len(body) > LARGE else _field(body, names)
    model = "" if field is None else field.model
    if field is not None and needs_model and not model:
        with suppress(BadRequest):  # without a default, the backend decides
            model = await router.chosen()
    if field is None or not model:
        return Addressed(await router.unnamed(exchange.path), wire)
    route = await router.route(model)
    if route.model == field.model:
        return Addressed(route, wire)
    return Addressed(route, field.renamed(route.model), plain=True)


@dataclass(frozen=True, slots=True)
class _Field:
    """Field of a body that names the model; `model` is empty if it names none."""

    model: str
    renamed: Callable[[str], bytes]
    """Returns the body with another model in this field."""


def _field(body: bytes, names: Sequence[str]) -> _Field | None:
    """Find the first of these fields that is a string, or None if the body is not a JSON object, or the model not a string."""
    try:
        parsed = loads_text(body)
    except BadText as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    name = next((name for name in names if isinstance(parsed.get(name), str)), "model")
    model = parsed.get(name) or ""
    return _Field(model, lambda model: dumps({**parsed, name: model})) if isinstance(model, str) else None


def _field_at_ends(body: bytes, names: Sequence[str]) -> _Field | None:
    """Find one of these fields near either end of a body that is too large to parse on the event loop.

    SDKs write the model first or last. A nested field with the same name would be mistaken for it.
    """
    patterns = [re.compile(rb'"%b"\s{0,64}:\s{0,64}"([^"\\]{0,512})"' % name.encode()) for name in names]
    ends = (0, _ENDS), (len(body) - _ENDS, len(body))
    found = next((match for each in patterns for end in ends if (match := each.search(body, *end))), None)
    if found is None:
        return None
    before, after = body[: found.start(1)], body[found.end(1) :]
    return _Field(found[1].decode("utf-8", "replace"), lambda model: before + dumps(model)[1:-1] + after)


def _model_in(form: bytes, boundary: bytes) -> re.Match[bytes] | None:
    """Find the part of a form that names the model, among those received so far."""
    delimiter, at = b"--" + boundary + b"\r\n", 0
    for _ in range(_PARTS if boundary else 0):
        if (at := form.find(delimiter, at)) < 0:
            return None
        at += len(delimiter)
        if (field := _FIELD.match(form, at)) is not None:
            return field
    return None
