from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from proxy.net.proxied import ProxiedTransport
from proxy.net.transport import build_request
from tests.net.peer import DEADLINE, END, OK, Peer, chunk, get, opened, send, serving

pytestmark = pytest.mark.anyio

FAR = "http://far.invalid:81"


def proxied(direct: httpx.AsyncBaseTransport, port: int, *roots: str) -> ProxiedTransport:
    proxies = dict.fromkeys(roots, f"http://me:secret@127.0.0.1:{port}")
    return ProxiedTransport(direct, proxies, connect_timeout=DEADLINE, read_timeout=DEADLINE)


async def ask(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> bytes:
    response = await transport.handle_async_request(request)
    try:
        return await response.aread()
    finally:
        await response.aclose()


async def test_what_has_a_proxy_goes_through_it_and_the_rest_does_not() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        while (request := await peer.request())[0]:
            seen.append(request)
            await peer.send(OK)

    async with serving(script) as served, opened() as direct, proxied(direct, served.port, FAR) as transport:
        request = build_request("POST", httpx.URL(FAR), [(b"X", b"1")], b"body", target=b"/v1/x?y=%2F")
        assert await ask(transport, request) == b"ok"
        assert await ask(transport, get(served)) == b"ok"
    (head, body), (near, _) = seen
    assert head.startswith(b"POST http://far.invalid:81/v1/x?y=%2F HTTP/1.1\r\n")
    lines = head.split(b"\r\n")
    assert {b"X: 1", b"Host: far.invalid:81", b"Content-Length: 4"} <= set(lines)
    assert any(line.startswith(b"Proxy-Authorization: Basic ") for line in lines)
    assert body == b"body"
    assert near.startswith(b"GET / HTTP/1.1\r\n")


async def test_an_upload_is_streamed_through_it() -> None:
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.head())
        got.append(await peer.exactly(len(chunk(b"ab") + chunk(b"c") + END)))
        await peer.send(OK)

    async def produce() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    async with serving(script) as served, opened() as direct, proxied(direct, served.port, FAR) as transport:
        assert await ask(transport, build_request("POST", httpx.URL(FAR), [], produce())) == b"ok"
    assert b"Transfer-Encoding: chunked" in got[0]
    assert got[1] == chunk(b"ab") + chunk(b"c") + END


async def test_tls_goes_through_a_tunnel_and_a_refusal_of_it_is_a_transport_error() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.head()).startswith(b"CONNECT far.invalid:443 HTTP/1.1\r\n")
        await peer.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await peer.gone()

    far = "https://far.invalid"
    async with serving(script) as served, opened() as direct, proxied(direct, served.port, far) as transport:
        with pytest.raises(httpx.TransportError):
            await ask(transport, build_request("GET", httpx.URL(far), []))


async def test_a_post_through_it_is_never_sent_twice() -> None:
    bodies: list[bytes] = []

    async def script(peer: Peer) -> None:
        while (request := await peer.request())[0]:
            bodies.append(request[1])
            if request[1] == b"second":
                return
            await peer.send(OK)

    async with serving(script) as served, opened() as direct, proxied(direct, served.port, FAR) as transport:
        await ask(transport, build_request("POST", httpx.URL(FAR), [], b"first"))
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, build_request("POST", httpx.URL(FAR), [], b"second"))
    assert bodies == [b"first", b"second"]


async def test_closing_it_closes_the_direct_one_too() -> None:
    async with opened() as direct:
        await proxied(direct, 9, FAR).aclose()
        with pytest.raises(httpx.ConnectError, match="closed"):
            await send(direct, build_request("GET", httpx.URL("http://127.0.0.1:9"), []))


@pytest.mark.parametrize("upload", [False, True])
async def test_a_response_that_does_not_begin_is_given_up(upload: bool) -> None:
    """One interim response after the other."""

    async def script(peer: Peer) -> None:
        await (peer.head() if upload else peer.request())
        with suppress(ConnectionError):
            while True:
                await peer.send(b"HTTP/1.1 102 Processing\r\n\r\n")
                await asyncio.sleep(0.001)

    async def produce() -> AsyncIterator[bytes]:
        yield b"a"

    body = produce() if upload else b"a"
    async with serving(script) as served, opened() as direct:
        proxies = {FAR: f"http://127.0.0.1:{served.port}"}
        async with ProxiedTransport(direct, proxies, connect_timeout=0.1, read_timeout=0.1) as transport:
            with pytest.raises(httpx.ReadTimeout):
                await ask(transport, build_request("POST", httpx.URL(FAR), [], body))


async def test_a_response_is_closed_though_who_closes_it_leaves() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"ab"))
        await peer.gone()
        left.set()

    async with serving(script) as served, opened() as direct, proxied(direct, served.port, FAR) as transport:
        response = await transport.handle_async_request(build_request("GET", httpx.URL(FAR), []))
        closing = asyncio.ensure_future(response.aclose())
        await asyncio.sleep(0)
        assert closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.wait_for(left.wait(), DEADLINE)
