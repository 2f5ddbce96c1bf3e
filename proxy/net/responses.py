"""Responses of backends: streams are recognised, all others are read to their end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from proxy.core.errors import UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable
from proxy.core.jsontext import dumps
from proxy.net.inflate import UNDONE, Undecodable, encoding_of, undone

ERROR_BYTES = 256 * 1024
"""An error's body is read up to here."""
ERROR_SECONDS = 30.0
"""Seconds that an error's body may take."""
QUOTED = 2000
"""Characters of a backend's own words in an error of Spillway's."""
_PLAIN = (b"{", b"[")
"""What JSON begins with, and no content-encoding does."""


def is_event_stream(response: httpx.Response) -> bool:
    """Return whether the backend streams an answer, rather than telling an error."""
    return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")


def retry_after(response: httpx.Response) -> int | None:
    """Seconds after which the backend wants to be asked again; None: it names none. A date counts as years away."""
    value = str(response.headers.get("retry-after", "")).strip()
    if not value:
        return None
    return int(value[:9]) if value.isdecimal() else 10**9


async def body_of(response: httpx.Response, limit: int) -> bytes:
    """The body as it came, not decoded; the response is closed.

    Raises:
        UpstreamTooLarge: it has more than `limit` bytes.
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    body = bytearray()
    if not await _take(response, body, limit):
        raise UpstreamTooLarge(f"The backend's answer is larger than the {limit} bytes accepted of one.")
    return bytes(body)


async def error_of(response: httpx.Response) -> bytes:
    """The body of an error as it came, not decoded; the response is closed.

    One that is too long or too slow is replaced by an error that quotes its beginning: the status stays, and the
    headers are made to fit.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    body = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(ERROR_SECONDS):
            if await _take(response, body, ERROR_BYTES):
                return bytes(body)
    quoted = "" if encoding_of(response) else body[:QUOTED].decode("utf-8", "replace")
    error = UpstreamUnavailable(f"The backend answered {response.status_code}, in words without end: {quoted}")
    for name in ("content-length", "content-encoding"):
        response.headers.pop(name, None)
    response.headers["content-type"] = "application/json"
    return dumps(error.body())


def plain_body(response: httpx.Response, body: bytes, limit: int) -> bytes | None:
    """A body without its content-encoding; None if that is not known here.

    Raises:
        Undecodable: it is not in that encoding, or comes to more than `limit` bytes.
    """
    encoding = "" if body[:1] in _PLAIN else encoding_of(response)
    if not encoding:
        return body
    if encoding not in UNDONE:
        return None
    plain = undone(body, encoding, limit)
    if plain is None:
        raise Undecodable(f"it is larger than the {limit} bytes accepted of one")
    return plain


def plain_error(response: httpx.Response, body: bytes) -> bytes:
    """The body of an error without its content-encoding; as it came if that can't be undone."""
    try:
        plain = plain_body(response, body, ERROR_BYTES)
    except Undecodable:
        plain = None
    return body if plain is None else plain


async def _take(response: httpx.Response, body: bytearray, limit: int) -> bool:
    """Add to `body` what is left of the response, and close that; False when it is more than `limit` bytes.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        async for part in stream:
            body += part
            if len(body) > limit:
                return False
    except httpx.TransportError as error:
        raise _lost(error) from None
    finally:
        await stream.aclose()
    return True


def _lost(error: httpx.TransportError) -> UpstreamUnavailable:
    if isinstance(error, httpx.TimeoutException):
        return UpstreamTimeout("The backend fell silent in the middle of the answer.")
    return UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}).")
