"""Undoing content-encodings, with an eye on what comes out: a kilobyte of gzip can hold a megabyte.

What is read here is asked for in one of `UNDONE`, or plain. Anything else that comes all the same is passed on unread.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx
from typing_extensions import override

from proxy.core.errors import BadRequest, BodyTooLarge

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
