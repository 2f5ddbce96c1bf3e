"""Bodies of requests and responses: read to their end within bounds, and without their content-encoding.

What is read here is asked for in one of `UNDONE`, or plain. Anything else that comes all the same is passed on unread. What
comes out of a decompressor is bounded: a kilobyte of gzip can hold a megabyte.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import httpx
from typing_extensions import override

from proxy.core.errors import BadRequest, BodyTooLarge, UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable
from proxy.core.jsontext import dumps

UNDONE = frozenset({"gzip", "x-gzip", "deflate"})
"""Encodings that can be undone, each of them alone."""
PIECE = 256 * 1024
"""Bytes that are undone at a time."""
MOST_TIMES = 256
"""What comes out may be so many times what went in. Model output comes to 5 to 30, one word over and over to 150."""
_LEAST_MEMBER = 32
"""Bytes of a member of gzip, at least and on average; an empty one has 20, and each costs a copy of what follows."""
FREE = 8 * 2**20
"""Bytes that may come out whatever went in."""
ERROR_BYTES = 256 * 1024
"""An error's body is read up to here."""
ERROR_SECONDS = 30.0
"""Seconds that an error's body may take."""
QUOTED = 2000
"""Characters of a backend's own words in an error of Spillway's."""
_PLAIN = (b"{", b"[")
"""What JSON begins with, and no content-encoding does."""


class Undecodable(ValueError):
    """The data is not in the encoding that it claims, ends too early, or is a bomb; the text says which."""


class Undecoded(httpx.ReadError):
    """The same of a response that is being read."""


class Inflater:
    """Undoes one of `UNDONE` as the data comes."""

    def __init__(self, encoding: str, *, members: bool = False) -> None:
        """`members`: several of gzip may follow one another (RFC 1952, 2.2): some servers make one of each event."""
        self._decoder = None if encoding == "deflate" else zlib.decompressobj(31)
        self._members = 0 if members and self._decoder is not None else None
        self._input = self._output = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress `data`, in pieces of at most `PIECE` bytes.

        Raises:
            Undecodable: see there.
        """
        if not data:
            return
        if self._decoder is None:
            # RFC 9110, 8.4.1.2: "deflate" is in zlib's format, but some send the bare stream, as browsers accept.
            self._decoder = zlib.decompressobj(15 if data[0] & 0x8F == 8 else -15)
        self._input += len(data)
        while data:
            self._begin_member()
            full = True
            while full:
                try:
                    piece = self._decoder.decompress(data, PIECE)
                except zlib.error as error:
                    raise Undecodable(str(error)) from None
                self._output += len(piece)
                if self._output > max(FREE, MOST_TIMES * self._input):
                    raise Undecodable(f"it grows to more than {MOST_TIMES} times its size")
                if piece:
                    yield piece
                full, data = len(piece) == PIECE, self._decoder.unconsumed_tail
            data = self._decoder.unused_data

    def _begin_member(self) -> None:
        """Begin another member behind the end of one.

        Raises:
            Undecodable: none may follow, or they are so many that they hold nothing.
        """
        assert self._decoder is not None
        if self._decoder.eof:
            if self._members is None or self._members * _LEAST_MEMBER > self._input:
                raise Undecodable("there is something behind its end")
            self._members += 1
            self._decoder = zlib.decompressobj(31)

    def close(self) -> None:
        """Note the end of the data.

        Raises:
            Undecodable: it ends too early.
        """
        if self._decoder is None or not self._decoder.eof:
            raise Undecodable("it ends too early")


def undone(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Decompress a body in one of `UNDONE`; None if it is larger than `limit` bytes.

    Raises:
        Undecodable: see there.
    """
    inflater, out = Inflater(encoding), bytearray()
    for piece in inflater.feed(body):
        out += piece
        if len(out) > limit:
            return None
    inflater.close()
    return bytes(out)


def encoding_of(response: httpx.Response) -> str:
    """Return the content-encoding, in lower case; empty for none."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


def readable(response: httpx.Response) -> httpx.Response | None:
    """Return the response with its body as plain bytes; None if it is in an encoding that is not known here."""
    encoding = encoding_of(response)
    if not encoding:
        return response
    if encoding not in UNDONE:
        return None
    assert isinstance(response.stream, httpx.AsyncByteStream)
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, stream=_Inflated(response.stream, Inflater(encoding, members=True))
    )


class _Inflated(httpx.AsyncByteStream):
    """Decompresses as it comes, so that an event is passed on as soon as it is there."""

    def __init__(self, stream: httpx.AsyncByteStream, inflater: Inflater) -> None:
        self._stream = stream
        self._inflater = inflater

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                for piece in self._inflater.feed(data):
                    yield piece
            self._inflater.close()
        except Undecodable as error:
            raise Undecoded(f"it can't be decompressed: {error}") from None

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


def decoded(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Undo a request's content-encoding, up to `limit` bytes.

    Raises:
        BadRequest: an encoding that is not known, or data that is not in it.
        BodyTooLarge: more than `limit` bytes come out.
    """
    encoding = (encoding or "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in UNDONE:
        raise BadRequest(f"content-encoding {encoding} is not supported; send identity, gzip or deflate.")
    try:
        plain = undone(body, encoding, limit)
    except Undecodable as error:
        raise BadRequest(f"The request body is not valid {encoding}: {error}.") from None
    if plain is None:
        raise body_too_large(limit)
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
    except httpx.TimeoutException:
        raise UpstreamTimeout("The backend fell silent in the middle of the answer.") from None
    except httpx.TransportError as error:
        raise UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}).") from None
    finally:
        await stream.aclose()
    return True
