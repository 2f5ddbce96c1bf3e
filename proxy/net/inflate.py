"""Undoing content-encodings, with an eye on what comes out: a kilobyte of gzip can hold a megabyte.

What is read here is asked for in one of `UNDONE`, or plain. Anything else that comes all the same is passed on unread.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx
from typing_extensions import override

from proxy.errors import BadRequest, BodyTooLarge

UNDONE = frozenset({"gzip", "x-gzip", "deflate"})
"""Encodings that can be undone, each of them alone."""
PIECE = 256 * 1024
"""Bytes that are undone at a time."""
MOST_TIMES = 256
"""What comes out may be so many times what went in. Model output comes to 5 to 30, one word over and over to 150."""
FREE = 8 * 2**20
"""Bytes that may come out whatever went in."""
MOST_EMPTY = 64
"""Members of a gzip body in a row that may have nothing in them; each may be as short as 20 bytes."""


class Undecodable(ValueError):
    """The data is not in the encoding that it claims, ends too early, or is a bomb; the text says which."""


class Undecoded(httpx.ReadError):
    """The same of a response that is being read."""


class Inflater:
    """Undoes one of `UNDONE` as the data comes."""

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding != "deflate"
        self._decoder = zlib.decompressobj(31) if self._gzip else None
        self._taken = self._given = self._empty = 0
        self._member = 0
        """Bytes that the running member has given so far."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` comes to, in pieces of at most `PIECE` bytes.

        Raises:
            Undecodable: see there.
        """
        self._taken += len(data)
        while data:
            decoder = self._decoder = self._decoder_for(data)
            piece = self._undone(decoder, data)
            while len(piece) == PIECE:
                yield piece
                piece = self._undone(decoder, decoder.unconsumed_tail)
            if piece:
                yield piece
            data = decoder.unused_data

    def close(self) -> None:
        """Tell the end of the data.

        Raises:
            Undecodable: it ends too early.
        """
        if self._decoder is None or not self._decoder.eof:
            raise Undecodable("it ends too early")

    def _decoder_for(self, data: bytes) -> zlib._Decompress:
        if self._decoder is None:
            # RFC 9110, 8.4.1.2: "deflate" is in zlib's format, but some send the bare stream, as browsers accept.
            return zlib.decompressobj(15 if data[0] & 0x8F == 8 else -15)
        if not self._decoder.eof:
            return self._decoder
        # A gzip body may have several members (RFC 1952, 2.2).
        self._empty = 0 if self._member else self._empty + 1
        self._member = 0
        if not self._gzip:
            raise Undecodable("there is something behind its end")
        if self._empty > MOST_EMPTY:
            raise Undecodable("it has too many members")
        return zlib.decompressobj(31)

    def _undone(self, decoder: zlib._Decompress, data: bytes) -> bytes:
        try:
            piece = decoder.decompress(data, PIECE)
        except zlib.error as error:
            raise Undecodable(str(error)) from None
        self._given += len(piece)
        self._member += len(piece)
        if self._given > max(FREE, MOST_TIMES * self._taken):
            raise Undecodable(f"it grows to more than {MOST_TIMES} times its size")
        return piece


def undone(body: bytes, encoding: str, limit: int) -> bytes | None:
    """A whole body without its encoding, which is one of `UNDONE`; None if it is larger than `limit` bytes.

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
    """The content-encoding, in lower case; empty for none."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


def readable(response: httpx.Response) -> httpx.Response | None:
    """The response with its body as plain bytes; None if it is in an encoding that is not known here."""
    encoding = encoding_of(response)
    if not encoding:
        return response
    if encoding not in UNDONE:
        return None
    assert isinstance(response.stream, httpx.AsyncByteStream)
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, stream=_Inflated(response.stream, Inflater(encoding))
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
    """The error of a request whose body has more than `limit` bytes."""
    return BodyTooLarge(
        f"The request body is larger than the {limit} bytes accepted here (SPILLWAY_MAX_BODY)."
    )
