"""Undoing the compression of a stream that was asked for uncompressed and came compressed all the same."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import httpx
from typing_extensions import override

_WBITS = {"gzip": 47, "x-gzip": 47, "deflate": 15}


def readable(response: httpx.Response) -> httpx.Response | None:
    """The response with its body as plain bytes; None if it is in an encoding that is not known here."""
    encoding = str(response.headers.get("content-encoding", "")).strip().lower()
    if encoding in ("", "identity"):
        return response
    if encoding not in _WBITS:
        return None
    assert isinstance(response.stream, httpx.AsyncByteStream)
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, stream=_Inflated(response.stream, _WBITS[encoding])
    )


class _Inflated(httpx.AsyncByteStream):
    """Decompresses as it comes, so that an event is passed on as soon as it is there."""

    def __init__(self, stream: httpx.AsyncByteStream, wbits: int) -> None:
        self._stream = stream
        self._wbits = wbits

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = zlib.decompressobj(self._wbits)
        try:
            async for data in self._stream:
                if plain := decoder.decompress(data):
                    yield plain
            if plain := decoder.flush():
                yield plain
        except zlib.error as error:
            raise httpx.ReadError(f"the body is not in the encoding it claims: {error}") from None

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()
