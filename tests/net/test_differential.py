"""What a server sends means the same to our HTTP/1.1 client as to h11 and to httpx's own transport, or is an error.

Being stricter than they are is fine. Where we are laxer, `LAXER` says what it is, and why it does no harm.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TypeAlias

import h11
import httpcore
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.net.grammar import CUTS, cut, responses
from tests.net.test_http11 import started

LAXER = {
    "control characters in the reason": re.compile(
        rb"(?m)^HTTP/\d\.\d \d{3} [^\r\n]*[\x00-\x08\x0b-\x1f\x7f]"
    ),
    "more than 20 digits of a chunk's size": re.compile(rb"(?m)^0{15,}[0-9a-fA-F]+[;\r]"),
    "blank lines before it": re.compile(rb"\A[\r\n]+HTTP/"),
}
"""Nobody is told the reason. Zeros in front of a chunk's size change nothing (RFC 9112, 7.1: `1*HEXDIG`). A blank line may be
the end of the response before."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    def of(cls, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        """In the spelling that all have in common: h11 writes names small, and `chunked`, and strips values."""
        told = [(name.lower(), value.strip(b" \t")) for name, value in headers]
        small = [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in told]
        return cls(status, tuple(small), body)


Read: TypeAlias = "tuple[Answer | None, bool]"
"""The answer, None for an error; and whether the connection would be used again."""


async def ours(pieces: list[bytes], method: str) -> Read:
    connection, wire = started(head_only=method == "HEAD")
    for piece in pieces:
        if wire.open:
            connection.data_received(piece)
    kept = connection.reusable
    connection.connection_lost(None)
    try:
        await connection.read_head()
        body = b""
        while data := await connection.read():
            body += data
    except httpx.HTTPError:
        return None, False
    finally:
        connection.abort()
    return Answer.of(connection.status, connection.headers, body), kept


def by_h11(pieces: list[bytes], method: str) -> Read:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    status, headers, body = 0, list[tuple[bytes, bytes]](), b""
    try:
        for at, piece in enumerate([*pieces, b""]):
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    status, headers = event.status_code, list(event.headers)
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    # What lies behind would be taken for the next response; but blank lines are none.
                    behind = connection.trailing_data[0] + b"".join(pieces[at + 1 :])
                    kept = connection.their_state is h11.DONE and not behind.strip(b"\r\n")
                    return Answer.of(status, headers, body), kept
                elif isinstance(event, h11.ConnectionClosed):
                    return None, False
    except h11.RemoteProtocolError:
        pass
    return None, False


NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Saves 20 ms for certificates that nobody needs."""


async def by_httpx(pieces: list[bytes], method: str) -> Read:
    transport = httpx.AsyncHTTPTransport(verify=NO_TLS)
    transport._pool = httpcore.AsyncConnectionPool(network_backend=httpcore.AsyncMockBackend([*pieces, b""]))
    try:
        response = await transport.handle_async_request(httpx.Request(method, "http://x/"))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        body = b"".join([part async for part in response.stream])
    except httpx.HTTPError:
        return None, False
    finally:
        await transport.aclose()
    return Answer.of(response.status_code, list(response.headers.raw), body), False


def compare(data: bytes, cuts: list[int], method: str) -> None:
    pieces = cut(data, cuts)
    read, kept = asyncio.run(ours(pieces, method))
    other, other_kept = by_h11(pieces, method)
    third, _ = asyncio.run(by_httpx(pieces, method))
    for them in (other, third):
        if read is not None and them is not None:
            assert read == them
        elif read is not None:
            assert any(lax.search(data) for lax in LAXER.values()), (read, data)
    assert not kept or other_kept or other is None


METHODS = st.sampled_from(["GET", "GET", "POST", "HEAD"])


@given(data=responses(), cuts=CUTS, method=METHODS)
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n\r\n", [], "GET")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [], "HEAD")
@example(b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n{}", [], "GET")
@example(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n", [-1], "GET")
@example(
    b"HTTP/1.1 199 x\r\ncontent-length: 19\r\n\r\nHTTP/1.1 200 OK\r\n\r\nHTTP/1.1 500 OK\r\n\r\n", [], "GET"
)
@example(b"\nHTTP/1.1 200\r\n\r\n5\r\n", [], "GET")
@example(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [], "GET")
def test_it_means_the_same_to_all_or_is_an_error(data: bytes, cuts: list[int], method: str) -> None:
    compare(data, cuts, method)


@given(
    data=st.binary(max_size=120),
    start=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n"]),
)
def test_so_do_arbitrary_bytes(data: bytes, start: bytes) -> None:
    compare(start + data, [], "GET")


@given(data=responses(), cuts=CUTS, method=METHODS)
def test_where_it_is_cut_makes_no_difference(data: bytes, cuts: list[int], method: str) -> None:
    async def read(pieces: list[bytes]) -> Answer | None:
        return (await ours(pieces, method))[0]

    assert asyncio.run(read(cut(data, cuts))) == asyncio.run(read([data] if data else []))


OK = b"HTTP/1.1 200 OK\r\n"
HELLO = Answer(200, (), b"hello")
DECIDED: dict[str, tuple[bytes, Answer | None]] = {
    "plain": (OK + b"content-length: 5\r\n\r\nhello", Answer(200, ((b"content-length", b"5"),), b"hello")),
    "to the end": (OK + b"\r\nhello", HELLO),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nhello", HELLO),
    "no reason": (b"HTTP/1.1 200\r\n\r\nhello", HELLO),
    "after 1xx": (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\na: b\r\n\r\n" + OK + b"\r\nhello", HELLO),
    "1xx and no more": (b"HTTP/1.1 100 Continue\r\n\r\n", None),
    "1xx with a length": (b"HTTP/1.1 102 P\r\ncontent-length: 1\r\n\r\n" + OK + b"\r\nhello", None),
    "obs-fold": (OK + b"a: b\r\n c\r\n\r\nhello", None),
    "bare LF": (b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", None),
    "bare CR": (OK + b"a: b\rc: d\r\n\r\nhello", None),
    "length and chunks": (OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", None),
    "chunks and length": (OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", None),
    "two lengths": (OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello", None),
    "a list of lengths": (OK + b"content-length: 5, 5\r\n\r\nhello", None),
    "a length with a sign": (OK + b"content-length: +5\r\n\r\nhello", None),
    "a negative length": (OK + b"content-length: -5\r\n\r\nhello", None),
    "a length beyond 64 bits": (OK + b"content-length: 99999999999999999999\r\n\r\nhello", None),
    "cut short": (OK + b"content-length: 9\r\n\r\nhello", None),
    "chunks cut short": (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", None),
    "no last blank line": (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", None),
    "chunked twice": (OK + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", None),
    "gzip, chunked": (OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", None),
    "identity": (OK + b"transfer-encoding: identity\r\n\r\nhello", None),
    "a size of 0x5": (OK + b"transfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", None),
    "a size of +5": (OK + b"transfer-encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n", None),
    "a space before a size": (OK + b"transfer-encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n", None),
    "a space behind a size": (OK + b"transfer-encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", None),
    "a huge size": (OK + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\nhello", None),
    "a status of two digits": (b"HTTP/1.1 20 OK\r\n\r\nhello", None),
    "a status of 000": (b"HTTP/1.1 000 OK\r\n\r\nhello", None),
    "another protocol": (b"HTTP/2.1 200 OK\r\n\r\nhello", None),
    "a space before a colon": (OK + b"content-length : 5\r\n\r\nhello", None),
    "a NUL in a value": (OK + b"a: \x00\r\n\r\nhello", None),
    "nothing": (b"", None),
}


@pytest.mark.parametrize("what", sorted(DECIDED))
@pytest.mark.parametrize("cuts", [[], [-1]])
def test_what_was_decided(what: str, cuts: list[int]) -> None:
    data, expected = DECIDED[what]
    assert asyncio.run(ours(cut(data, cuts), "GET"))[0] == expected
    compare(data, cuts, "GET")
