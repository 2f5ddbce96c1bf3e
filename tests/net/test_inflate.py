"""Streams that come compressed although they were asked for plain."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest
from typing_extensions import override

from proxy.net.bodies import readable

pytestmark = pytest.mark.anyio


class Parts(httpx.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.closed = False

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part

    @override
    async def aclose(self) -> None:
        self.closed = True


def response(encoding: str, parts: list[bytes]) -> httpx.Response:
    headers = [(b"content-type", b"text/event-stream"), (b"Content-Encoding", encoding.encode())]
    return httpx.Response(200, headers=headers, stream=Parts(parts))


async def body(plain: httpx.Response) -> bytes:
    assert isinstance(plain.stream, httpx.AsyncByteStream)
    return b"".join([part async for part in plain.stream])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_it_comes_out_byte_by_byte(encoding: str) -> None:
    data = b"data: {}\n\n" * 50
    packed = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    plain = readable(response(encoding, [packed[i : i + 1] for i in range(len(packed))]))
    assert plain is not None
    assert "content-encoding" not in plain.headers
    assert await body(plain) == data


async def test_each_flushed_event_is_passed_on_at_once() -> None:
    packer = zlib.compressobj(wbits=31)
    parts = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in (b"one\n\n", b"two\n\n")] + [
        packer.flush()
    ]
    plain = readable(response("gzip", parts))
    assert plain is not None
    assert isinstance(plain.stream, httpx.AsyncByteStream)
    assert [part async for part in plain.stream][:2] == [b"one\n\n", b"two\n\n"]


async def test_what_is_not_in_its_encoding_is_a_read_error() -> None:
    plain = readable(response("gzip", [b"not gzip"]))
    assert plain is not None
    with pytest.raises(httpx.ReadError):
        await body(plain)


async def test_plain_and_unknown_encodings() -> None:
    same = response("identity", [b"x"])
    assert readable(same) is same
    assert readable(response("br", [b"x"])) is None


async def test_closing_reaches_the_connection() -> None:
    parts = Parts([])
    plain = readable(httpx.Response(200, headers={"content-encoding": "gzip"}, stream=parts))
    assert plain is not None
    await plain.aclose()
    assert parts.closed
