"""Bodies of requests and responses: read to their end within bounds, and a request's without its content-encoding."""

from __future__ import annotations

import asyncio
import zlib

import httpx

from proxy.core.errors import BadRequest, BodyTooLarge, UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable

_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Content-encodings of a request that can be undone, each of them alone."""
ERROR_BYTES = 256 * 1024
"""An error's body is read up to here."""
ERROR_SECONDS = 30.0
"""Seconds that an error's body may take."""
QUOTED = 2000
"""Characters of a backend's own words in an error of Spillway's."""


def decoded(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Undo a request's content-encoding, up to `limit` bytes.

    Raises:
        BadRequest: an encoding that is not known, or data that is not in it.
        BodyTooLarge: more than `limit` bytes come out: a kilobyte of gzip can hold a megabyte.
    """
    encoding = (encoding or "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _ENCODINGS:
        raise BadRequest(f"content-encoding {encoding} is not supported; send identity, gzip or deflate.")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # the format of zlib or of gzip, whichever it begins with
    try:
        plain = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"The request body is not valid {encoding}: {error}.") from None
    if len(plain) > limit:
        raise body_too_large(limit)
    if not decoder.eof or decoder.unused_data:
        wrong = "there is something behind its end" if decoder.eof else "it ends too early"
        raise BadRequest(f"The request body is not valid {encoding}: {wrong}.")
    return plain


def body_too_large(limit: int) -> BodyTooLarge:
    """Return the error for a request whose body has more than `limit` bytes."""
    return BodyTooLarge(f"The request body is larger than the {limit} bytes accepted here (SPILLWAY_MAX_BODY).")


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

    An error that is too long, or comes too slowly, is cut off.

    Raises:
        UpstreamTooLarge: it is no error, and has more than `limit` bytes.
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    stream, body, is_error = response.stream, bytearray(), not response.is_success
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        async with asyncio.timeout(ERROR_SECONDS if is_error else None):
            async for part in stream:
                body += part
                if is_error and len(body) > ERROR_BYTES:
                    break
                if len(body) > limit:
                    raise UpstreamTooLarge(f"The backend's answer is larger than the {limit} bytes accepted of one.")
    except httpx.TimeoutException:
        raise UpstreamTimeout("The backend fell silent in the middle of the answer.") from None
    except httpx.TransportError as error:
        raise UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}).") from None
    except TimeoutError:
        pass
    finally:
        await stream.aclose()
    return bytes(body)
