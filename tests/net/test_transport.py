"""What goes over the wire, both ways: the transport against scripted servers, on both event loops."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from proxy.net.transport import build_request, open_transport
from tests.net.peer import (
    CHUNKED,
    DEADLINE,
    END,
    OK,
    Peer,
    body_of,
    chunk,
    get,
    opened,
    post,
    read_until_error,
    send,
    serving,
)

pytestmark = [pytest.mark.anyio]


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_the_request_goes_out_as_it_was_given() -> None:
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        seen.extend(await peer.request())
        await peer.send(OK)

    headers = [
        (b"hOsT", b"model.example"),
        (b"X-Twice", b"1"),
        (b"content-length", b"5"),
        (b"x-twice", b"2"),
        (b"X-Latin", b"caf\xe9 \xf0\x9f"),
    ]
    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served, b"hello", *headers)) == b"ok"
    assert seen == [
        (
            b"POST /v1/x?y=1 HTTP/1.1\r\nhOsT: model.example\r\nX-Twice: 1\r\ncontent-length: 5\r\n"
            b"x-twice: 2\r\nX-Latin: caf\xe9 \xf0\x9f\r\n\r\n"
        ),
        b"hello",
    ]


async def test_only_host_and_framing_are_added() -> None:
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        for _ in range(4):
            seen.append((await peer.request())[0])
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        host = b"Host: 127.0.0.1:%d\r\n" % served.port
        await send(transport, post(served, b"hello"))
        await send(transport, post(served, b""))
        await send(transport, get(served))
        url = httpx.URL(f"http://127.0.0.1:{served.port}/ignored")
        await send(transport, build_request("GET", url, [], target=b"/a%2Fb?q=%20{}"))
    assert seen == [
        b"POST /v1/x?y=1 HTTP/1.1\r\n" + host + b"Content-Length: 5\r\n\r\n",
        b"POST /v1/x?y=1 HTTP/1.1\r\n" + host + b"Content-Length: 0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /a%2Fb?q=%20{} HTTP/1.1\r\n" + host + b"\r\n",
    ]


async def test_a_wrong_length_is_set_right() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.request())[1] == b"longer than five"
        await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        request = post(
            served, b"longer than five", (b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")
        )
        assert await send(transport, request) == b"ok"


async def test_the_response_comes_back_as_it_was_sent() -> None:
    zipped = gzip.compress(b"compressed by the backend")

    async def script(peer: Peer) -> None:
        await peer.request()
        head = b"HTTP/1.1 418 I'm a teapot\r\nsEt-cookie: a=1\r\nContent-Encoding: gzip\r\nSet-Cookie: b=2; x\r\n"
        await peer.send(head, b"X-Raw: \xff\xfe\r\nContent-Length: %d\r\n\r\n" % len(zipped), zipped)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(get(served))
        assert response.status_code == 418
        assert response.extensions["reason_phrase"] == b"I'm a teapot"
        assert response.headers.raw == [
            (b"sEt-cookie", b"a=1"),
            (b"Content-Encoding", b"gzip"),
            (b"Set-Cookie", b"b=2; x"),
            (b"X-Raw", b"\xff\xfe"),
            (b"Content-Length", b"%d" % len(zipped)),
        ]
        assert await body_of(response) == zipped


async def test_redirects_are_answers_like_any_other() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")

    async with serving(script) as served, opened() as transport:
        assert (await transport.handle_async_request(post(served))).status_code == 307


async def test_large_bodies_pass_whole_both_ways() -> None:
    big = bytes(range(256)) * 8192

    async def script(peer: Peer) -> None:
        _, body = await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served, big)) == big


@pytest.mark.parametrize("header", [(b"X", b"a\r\nInjected: b"), (b"X", b"a\nb"), (b"X\r", b"a")])
async def test_a_line_break_in_a_header_is_refused(header: tuple[bytes, bytes]) -> None:
    async with opened() as transport:
        request = build_request("GET", httpx.URL("http://127.0.0.1:9/"), [header])
        with pytest.raises(httpx.LocalProtocolError):
            await transport.handle_async_request(request)


async def test_works_under_an_httpx_client() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b'{"a":'), chunk(b"1}"), END)

    async with (
        serving(script) as served,
        httpx.AsyncClient(transport=open_transport(connect_timeout=5, read_timeout=5)) as client,
    ):
        response = await client.post(f"http://localhost:{served.port}/", json={"b": 2})
        assert response.json() == {"a": 1}


async def test_each_chunk_arrives_before_the_next_is_sent() -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for number in range(3):
            await asyncio.wait_for(seen.wait(), DEADLINE)
            seen.clear()
            await peer.send(chunk(b"data: %d\n\n" % number))
        await peer.send(END)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        seen.set()
        got = []
        async for piece in response.stream:
            got.append(piece)
            seen.set()
        assert got == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]


async def test_closing_early_closes_the_connection_at_once() -> None:
    noticed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"first"))
        await peer.gone()
        noticed.set()

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        assert await anext(aiter(response.stream)) == b"first"
        await response.stream.aclose()
        await asyncio.wait_for(noticed.wait(), DEADLINE)
        assert [piece async for piece in response.stream] == []


async def test_cancelling_while_the_head_is_awaited_closes_the_connection() -> None:
    arrived, noticed = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.gone()
        noticed.set()

    async with serving(script) as served, opened() as transport:
        task = asyncio.ensure_future(transport.handle_async_request(post(served)))
        await asyncio.wait_for(arrived.wait(), DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(noticed.wait(), DEADLINE)


async def test_an_upload_is_sent_while_it_is_produced() -> None:
    seen = asyncio.Event()
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        heads.append(await peer.head())
        for piece in (b"one", b"two"):
            assert await peer.exactly(len(chunk(piece))) == chunk(piece)
            seen.set()
        assert await peer.exactly(len(END)) == END
        await peer.send(OK)

    async def produce() -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"two"):
            yield piece
            if piece:
                await asyncio.wait_for(seen.wait(), DEADLINE)
                seen.clear()

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served, produce())) == b"ok"
    assert b"\r\nTransfer-Encoding: chunked\r\n" in heads[0]


async def test_an_upload_of_known_length_is_not_chunked() -> None:
    async def script(peer: Peer) -> None:
        head, body = await peer.request()
        assert b"chunked" not in head
        assert body == b"onetwo"
        await peer.send(OK)

    async def produce() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served, produce(), (b"Content-Length", b"6"))) == b"ok"


async def test_an_early_answer_ends_the_upload() -> None:
    produced = 0

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await peer.gone()

    async def produce() -> AsyncIterator[bytes]:
        nonlocal produced
        while True:
            produced += 1
            yield b"x" * 65536
            await asyncio.sleep(0)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served, produce()))
        assert response.status_code == 413
        before = produced
        assert await body_of(response) == b""
        assert produced == before


async def test_a_response_to_head_has_no_body() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.request())[0].startswith(b"HEAD ")
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        assert (await peer.request())[0].startswith(b"GET ")
        await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        assert await send(transport, get(served, "HEAD")) == b""
        assert await send(transport, get(served)) == b"ok"
        assert served.connections == 1


async def test_interim_responses_are_skipped() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK
        )

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        assert (response.status_code, response.headers.raw) == (200, [(b"Content-Length", b"2")])
        assert response.extensions["reason_phrase"] == b"OK"
        assert await body_of(response) == b"ok"


async def test_trailers_are_dropped() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"ok"), b"0\r\nX-Trailer: 1\r\n\r\n")

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        assert await body_of(response) == b"ok"
        assert b"X-Trailer" not in dict(response.headers.raw)


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil ")
        await peer.send(b"the end")

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served)) == b"until the end"


@pytest.mark.parametrize(
    "broken",
    [
        CHUNKED + chunk(b"data: 1\n\n"),
        CHUNKED + chunk(b"data: 1\n\n") + b"30\r\nda",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: 1\n\n",
        CHUNKED + chunk(b"data: 1\n\n") + b"zz\r\n",
    ],
    ids=["between chunks", "inside a chunk", "before its length", "bad chunk"],
)
async def test_a_body_that_breaks_off_is_an_error_after_what_came(broken: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(broken)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(post(served))
        got: list[bytes] = []
        with pytest.raises(httpx.RemoteProtocolError):
            await read_until_error(response, got)
        assert b"".join(got).startswith(b"data: 1\n\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n?",
    ],
)
async def test_what_is_not_an_http_response_is_an_error(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await send(transport, post(served))
