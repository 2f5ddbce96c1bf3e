"""Which connection is used, closed or tried again, and what failures look like, on both event loops."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.net.transport import FRESH, HttpTransport, build_request
from tests.net.peer import (
    CHUNKED,
    DEADLINE,
    END,
    OK,
    Peer,
    Served,
    body_of,
    chunk,
    opened,
    post,
    put,
    read_until_error,
    send,
    serving,
    until,
)

pytestmark = [pytest.mark.anyio]


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_connections_are_kept_and_used_again() -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        for _ in range(5):
            assert await send(transport, post(served)) == b"ok"
        assert served.connections == 1
        answers = await asyncio.gather(*(send(transport, post(served)) for _ in range(4)))
        assert answers == [b"ok"] * 4
        assert served.connections == 4


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok-and-more",
    ],
)
async def test_a_connection_that_should_close_is_closed(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served)) == b"ok"
        assert await send(transport, post(served)) == b"ok"
        assert served.connections == 2


@pytest.mark.parametrize("second", [b"HTTP/1.1 500\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500\r\nx"])
async def test_a_second_response_that_came_with_the_first_is_none(second: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + second)
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        for _ in range(2):
            response = await transport.handle_async_request(post(served))
            assert (response.status_code, await body_of(response)) == (200, b"ok")
        assert served.connections == 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_an_idempotent_request_on_a_dying_connection_is_sent_again_on_a_new_one(method: str) -> None:
    seen: list[tuple[int, bytes]] = []

    async def script(peer: Peer) -> None:
        while (request := await peer.request())[0]:
            seen.append((peer.number, request[1]))
            if seen == [(1, b"first"), (1, b"second")]:
                return  # gone, without a byte
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        assert await send(transport, post(served, b"first")) == b"ok"
        response = await transport.handle_async_request(put(served, b"second", method))
        await response.aclose()
    assert seen == [(1, b"first"), (1, b"second"), (2, b"second")]


async def test_it_is_sent_again_only_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.send(OK)
            await peer.request()

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        with pytest.raises(httpx.RemoteProtocolError, match="without a response"):
            await transport.handle_async_request(put(served))
        assert served.connections == 2


async def test_a_post_is_never_sent_twice() -> None:
    bodies: list[bytes] = []

    async def script(peer: Peer) -> None:
        while (request := await peer.request())[0]:
            bodies.append(request[1])
            if request[1] == b"second":
                return  # read whole, perhaps worked on, never answered
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served, b"first"))
        with pytest.raises(httpx.RemoteProtocolError, match="without a response"):
            await transport.handle_async_request(post(served, b"second"))
        assert served.connections == 1
    assert bodies == [b"first", b"second"]


async def test_a_post_goes_out_on_a_new_connection_once_the_kept_one_is_not_fresh() -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(OK)

    async with serving(script) as served, opened(keep_alive=60) as transport:
        await send(transport, post(served))
        for kept in transport._idle.values():
            kept[0].idle_since -= FRESH
        assert await send(transport, put(served)) == b"ok"
        assert served.connections == 1
        for kept in transport._idle.values():
            kept[0].idle_since -= FRESH
        assert await send(transport, post(served)) == b"ok"
        assert served.connections == 2


async def stream(transport: HttpTransport, served: Served) -> None:
    assert await send(transport, post(served, b"stream")) == b"x"


async def answer_streams(peer: Peer) -> None:
    """Stream to who asks for it, and hang up after that without saying so, when the next request comes."""
    while (request := await peer.request())[0]:
        if request[1] != b"stream":
            await peer.send(OK)
            continue
        await peer.send(CHUNKED, chunk(b"x"), END)
        await peer.gone_or_next()
        return


async def test_a_post_after_a_stream_does_not_rely_on_a_server_that_may_be_hanging_up() -> None:
    async with serving(answer_streams) as served, opened() as transport:
        for _ in range(3):
            await stream(transport, served)
            assert await send(transport, post(served)) == b"ok"


async def test_only_one_connection_is_kept_to_see_whether_the_server_leaves_it_open() -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(CHUNKED, chunk(b"x"), END)

    async with serving(script) as served, opened() as transport:
        for _ in range(3):
            await stream(transport, served)
        assert served.connections == 3
        assert sum(map(len, transport._idle.values())) == 1


async def test_a_server_that_leaves_connections_open_after_streams_is_relied_on() -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(CHUNKED, chunk(b"x"), END)

    async with serving(script) as served, opened(keep_alive=60) as transport:
        await stream(transport, served)
        for kept in transport._idle.values():
            kept[0].idle_since -= FRESH
        transport._sweep()
        for _ in range(3):
            await stream(transport, served)
        assert served.connections == 2


async def test_a_server_that_hung_up_unasked_is_not_relied_on() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number > 1:
            await peer.gone()

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        await until(lambda: not any(transport._idle.values()))
        for connections in (2, 3, 4):
            assert await send(transport, post(served)) == b"ok"
            assert served.connections == connections
        assert sum(map(len, transport._idle.values())) == 1


async def test_a_post_does_not_go_out_on_a_connection_whose_end_is_waiting_to_be_read() -> None:
    peers: list[Peer] = []

    async def script(peer: Peer) -> None:
        peers.append(peer)
        await peer.request()
        await peer.send(OK)
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        peers[0].shut()  # and before the loop can tell
        assert await send(transport, post(served)) == b"ok"
        assert served.connections == 2


async def test_nothing_is_sent_again_on_a_new_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with serving(script) as served, opened() as transport:
        with pytest.raises(httpx.RemoteProtocolError, match="without a response"):
            await transport.handle_async_request(post(served))
        assert served.connections == 1


async def test_nothing_is_sent_again_once_a_byte_came_back() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 2")

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(post(served))
        assert served.connections == 1


async def test_an_upload_never_goes_out_on_a_kept_connection() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 1:
            await peer.request()
        else:
            await peer.head()
            await peer.exactly(len(chunk(b"a") + END))
        await peer.send(OK)
        await peer.gone()

    async def produce() -> AsyncIterator[bytes]:
        yield b"a"

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        assert await send(transport, post(served, produce())) == b"ok"
        assert served.connections == 2


async def test_a_connection_closed_while_idle_is_not_tried() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        await until(lambda: not any(transport._idle.values()))
        assert await send(transport, post(served)) == b"ok"


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number == 1:
            await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await peer.gone()

    async with serving(script) as served, opened() as transport:
        await send(transport, post(served))
        await until(lambda: not any(transport._idle.values()))
        assert await send(transport, post(served)) == b"ok"


async def test_idle_connections_are_closed_after_a_while() -> None:
    noticed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()
        noticed.set()

    async with serving(script) as served, opened(keep_alive=0.02) as transport:
        await send(transport, post(served))
        await asyncio.wait_for(noticed.wait(), DEADLINE)
        await until(lambda: not transport._idle)


async def test_closing_the_transport_closes_every_connection() -> None:
    gone = 0

    async def script(peer: Peer) -> None:
        nonlocal gone
        await peer.request()
        await peer.send(CHUNKED if peer.number == 1 else OK)
        await peer.gone()
        gone += 1

    async with serving(script) as served, opened() as transport:
        streaming = await transport.handle_async_request(post(served))
        await send(transport, post(served))
        await transport.aclose()
        await until(lambda: gone == 2)
        assert isinstance(streaming.stream, httpx.AsyncByteStream)
        with pytest.raises(httpx.HTTPError):
            await body_of(streaming)
        with pytest.raises(httpx.ConnectError, match="closed"):
            await transport.handle_async_request(post(served))


async def test_silence_before_the_head_times_out() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with serving(script) as served, opened(read_timeout=0.05) as transport:
        with pytest.raises(httpx.ReadTimeout, match=r"nothing for 0\.05 s"):
            await transport.handle_async_request(post(served))
        assert served.connections == 1


async def test_silence_inside_the_body_times_out_and_talk_does_not() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(20):
            await peer.send(chunk(b"x"))
            await asyncio.sleep(0.02)  # 0.4 s in all: longer than the timeout, never silent for as long
        await peer.gone()

    async with serving(script) as served, opened() as transport:
        request = post(served)
        request.extensions["timeout"] = {"read": 0.3}
        response = await transport.handle_async_request(request)
        got: list[bytes] = []
        with pytest.raises(httpx.ReadTimeout):
            await read_until_error(response, got)
        assert b"".join(got) == b"x" * 20


async def test_an_upload_that_nobody_reads_times_out() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async def produce() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_000_000

    async with serving(script) as served, opened(send_timeout=0.1) as transport:
        for body in (produce(), b"x" * 50_000_000):
            with pytest.raises(httpx.WriteTimeout, match=r"read nothing for 0\.1 s"):
                await transport.handle_async_request(post(served, body))


async def test_an_upload_that_is_read_slowly_does_not() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        for _ in range(30):
            await peer.exactly(500_000)
            await asyncio.sleep(0.02)  # 0.6 s in all: longer than is allowed, never as long without anything
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with serving(script) as served, opened(send_timeout=0.3) as transport:
        response = await transport.handle_async_request(post(served, b"x" * 15_000_000))
        assert response.status_code == 200


async def test_an_answer_that_comes_before_the_body_is_read_may_take_as_long_as_it_likes() -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
        await asyncio.sleep(0.2)
        await peer.send(b"ok")
        await peer.gone()

    async with serving(script) as served, opened(send_timeout=0.05) as transport:
        response = await transport.handle_async_request(post(served, b"x" * 50_000_000))
        assert await body_of(response) == b"ok"


async def test_a_refused_connection_is_a_connect_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with opened() as transport:
            for host in ("127.0.0.1", "localhost"):
                with pytest.raises(httpx.ConnectError):
                    await transport.handle_async_request(
                        build_request("GET", httpx.URL(f"http://{host}:{port}/"), [])
                    )


async def test_a_handshake_that_hangs_is_a_connect_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with serving(script) as served, opened(connect_timeout=0.05) as transport:
        with pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(
                build_request("GET", httpx.URL(f"https://127.0.0.1:{served.port}/"), [])
            )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate to test TLS with")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


async def test_tls(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(OK)

    trusting = ssl.create_default_context(cafile=cert)
    async with serving(script, context) as served, opened(ssl_context=trusting) as transport:
        for _ in range(2):
            request = build_request("POST", httpx.URL(f"https://localhost:{served.port}/"), [], b"secret")
            assert await send(transport, request) == b"ok"
        assert served.connections == 1


async def test_an_untrusted_certificate_is_a_connect_error(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def script(peer: Peer) -> None:
        await peer.gone()

    async with serving(script, context) as served, opened() as transport:
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await transport.handle_async_request(
                build_request("GET", httpx.URL(f"https://localhost:{served.port}/"), [])
            )
