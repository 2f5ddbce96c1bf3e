"""The transport towards backends: errors in httpx's words, headers untouched, nothing sent twice but over a connection that was closed."""

import asyncio
import socket
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest

from proxy.net.tasks import spawn
from proxy.net.transport import HEADER_BYTES, MOST_INTERIM, PIECE, TURN_BYTES, InvalidResponse, body_of
from tests.connections import in_use
from tests.net.peer import CHUNKED, END, OK, Peer, Served, chunk, get, opened, post, serving

pytestmark = pytest.mark.anyio

BROKEN = {
    "no answer": ([], httpx.ReadError),
    "half a head": ([b"HTTP/1.1 200 OK\r\nContent-"], httpx.ReadError),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], InvalidResponse),
    "an impossible status": ([b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"], InvalidResponse),
    "two lengths": ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"], InvalidResponse),
    "half a body": ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"half"], httpx.ReadError),
    "half a chunk": ([CHUNKED, b"9\r\nhalf"], httpx.ReadError),
    "no last chunk": ([CHUNKED, chunk(b"a")], httpx.ReadError),
    "broken chunks from the first on": ([CHUNKED + b"zz\r\n"], InvalidResponse),
    "a header without a colon": ([b"HTTP/1.1 200 OK\r\nnocolon\r\n\r\n"], InvalidResponse),
    "a length and chunks": ([CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n"), END], InvalidResponse),
    "nothing but interim responses": ([b"HTTP/1.1 102 Processing\r\n\r\n" * 2 * MOST_INTERIM], InvalidResponse),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_responses_are_errors(name: str) -> None:
    parts, error = BROKEN[name]

    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)

    async with serving(script) as served, opened() as transport:
        with pytest.raises(error):
            await read(transport, post(served))
    assert served.connections == 1, "a POST is not sent twice"
    assert not in_use(transport)


NO_CHUNKS = (
    *(b"zz\r\nab\r\n", b"<html>502</html>", b"-5\r\nab\r\n", b"+2\r\nab\r\n", b"0x2\r\nab\r\n", b"\r\nab\r\n"),
    *(b"1\r\nab\r\n", b"2\nab\n", b"2 2\r\nab\r\n", b"9" * 20, b"0\r\nno colon\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n"),
    *(b"0\r\nx: " + b"a" * 2 * HEADER_BYTES, b"\0", b"2;\x01\r\nab\r\n"),
)


@pytest.mark.parametrize("bad", NO_CHUNKS, ids=lambda bad: repr(bad[:12]))
async def test_chunks_that_break_in_the_middle_end_the_body_at_once(bad: bytes) -> None:
    began = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"a"))
        await began.wait()
        await peer.send(bad)
        await peer.gone()  # not even that it hangs up is waited for

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"a"
        began.set()
        with pytest.raises(httpx.ReadError):
            async for _ in pieces:
                pass
        await response.aclose()
        assert not in_use(transport)


async def test_malformed_headers_are_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bad = [b"x-a: a%cb" % each for each in (*range(1, 9), 11, 12, *range(14, 32), 127)]
    bad += [b"x%cb: a" % each for each in b'"(),/;<=>?@[\\]{}\x7f']
    waiting = [*bad, *bad]

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(OK.replace(b"\r\n", b"\r\nx-good: \xc3\xbc\t1\r\n%b\r\n" % waiting.pop(), 1))

    async with serving(script) as served, opened() as transport:
        while waiting:
            try:
                response = await transport.handle_async_request(get(served))
            except InvalidResponse:  # the parser takes none of these
                continue
            assert [name for name, _ in response.headers.raw] == [b"x-good", b"Content-Length"]
            await body_of(response, 9)
    assert len(caplog.messages) == 1
    assert "malformed" in caplog.text


async def test_what_the_producer_of_a_body_raises_is_no_failure_of_the_server() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.gone()

    async def produced() -> AsyncIterator[bytes]:
        yield b"he"
        await asyncio.sleep(0)
        raise asyncio.CancelledError  # as of a client that leaves

    async with serving(script) as served, opened() as transport:
        request = httpx.Request("POST", post(served).url, headers={"content-length": "5"}, content=produced())
        with pytest.raises(asyncio.CancelledError):
            await read(transport, request)
        assert not in_use(transport)


async def test_refused_connections_are_connect_errors() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        served = Served()
        served.port = closed.getsockname()[1]
        async with opened() as transport:
            with pytest.raises(httpx.ConnectError):
                await read(transport, get(served))


async def test_silence_is_a_read_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 2:
            await peer.send(CHUNKED, chunk(b"a"))
        await peer.gone()

    async with serving(script) as served, opened(connect_timeout=0.1, read_timeout=0.1) as transport:
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                await read(transport, post(served))


@pytest.mark.parametrize("status", ["999", "600", "000", "101"])
async def test_a_connection_with_an_impossible_status_is_not_used_again(status: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(f"HTTP/1.1 {status} What\r\nContent-Length: 0\r\n\r\n".encode() if peer.number == 1 else OK)
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        with pytest.raises(InvalidResponse, match=f"a status of {status}"):
            await read(transport, post(served))
        assert await read(transport, post(served)) == b"ok"
    assert served.connections == 2


async def test_a_line_break_in_a_header_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await read(transport, post(served, b"", (b"x", b"1\r\ny: 2")))


async def test_requests_get_no_headers_but_of_the_connection_and_no_cookie_is_stored() -> None:
    heads = list[bytes]()

    async def script(peer: Peer) -> None:
        while head := (await peer.request())[0]:
            heads.append(head)
            await peer.send(OK.replace(b"\r\n", b"\r\nSet-Cookie: id=1; Path=/\r\n", 1))

    async with serving(script) as served, opened() as transport:
        for _ in range(2):
            assert await read(transport, post(served, b"hello", (b"x-a", b"1"), (b"x-a", b"2"))) == b"ok"
    names = {line.partition(b":")[0].lower() for line in heads[1].split(b"\r\n")[1:] if line}
    assert names == {b"host", b"content-length", b"x-a"}
    assert heads[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
    assert served.connections == 1, "a connection that was idle for a moment is used again"


@pytest.mark.parametrize("large", [False, True])
async def test_what_fails_on_a_connection_used_before_is_sent_once_more_over_a_new_one(large: bool) -> None:
    """As llama-server does after a stream: it closes without a word, and the next request is on its way already."""
    content = b"x" * (2 * PIECE if large else 5)

    async def script(peer: Peer) -> None:
        for number in range(3 - peer.number):
            assert (await peer.request())[1] == content
            if peer.number == 1 and number == 1:
                return
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        for _ in range(2):
            assert await read(transport, post(served, content)) == b"ok"
    assert served.connections == 2


async def test_a_request_passes_all_connections_that_were_closed_silently() -> None:
    idle, together = 3, asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == idle:
            together.set()
        await together.wait()
        await peer.send(OK)
        if peer.number <= idle:
            await peer.request()

    async with serving(script) as served, opened() as transport:
        await asyncio.gather(*(read(transport, post(served, b"hello")) for _ in range(idle)))
        assert await read(transport, post(served, b"hello")) == b"ok"
    assert served.connections == idle + 1


async def test_a_body_that_is_produced_meanwhile_is_not_sent_twice() -> None:
    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        assert head
        if peer.number == 1:
            await peer.send(OK)
            await peer.head()

    async def produced() -> AsyncIterator[bytes]:
        yield b"hello"

    async with serving(script) as served, opened() as transport:
        assert await read(transport, post(served)) == b"ok"
        request = httpx.Request("POST", post(served).url, headers={"content-length": "5"}, content=produced())
        with pytest.raises(httpx.ReadError):
            await read(transport, request)
    assert served.connections == 1


async def test_a_stream_with_much_to_read_lets_others_have_their_turn() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % PIECE, b"x" * PIECE)

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        neighbour = spawn(other(), name="neighbour")
        seen = [(len(piece), turns) async for piece in response.stream]
        neighbour.cancel()
        await response.aclose()
    assert sum(size for size, _ in seen) == PIECE
    assert max(size for size, _ in seen) <= TURN_BYTES
    assert all(later > earlier for (size, earlier), (_, later) in pairwise(seen) if size == TURN_BYTES)


async def test_closing_a_body_early_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"a"))
        await peer.gone()
        gone.set()

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        async for _ in response.aiter_raw():
            break
        await response.aclose()
        await asyncio.wait_for(gone.wait(), 20)


async def test_redirects_are_not_followed_and_bodies_not_decoded() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok")

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(get(served))
        assert (response.status_code, await body_of(response, 9)) == (302, b"ok")


async def test_named_origins_go_through_a_proxy() -> None:
    lines = list[bytes]()

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        lines.append(head.partition(b"\r\n")[0])
        await peer.send(CHUNKED, chunk(b"ok"), END)

    async with serving(script) as served, opened(proxies={"http://example.test": served.url}) as transport:
        assert await read(transport, httpx.Request("GET", "http://example.test/v1")) == b"ok"
        assert await read(transport, get(served)) == b"ok"
    assert lines == [b"GET http://example.test/v1 HTTP/1.1", b"GET / HTTP/1.1"]


async def read(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> bytes:
    response = await transport.handle_async_request(request)
    try:
        return b"".join([piece async for piece in response.aiter_raw()])
    finally:
        await response.aclose()
