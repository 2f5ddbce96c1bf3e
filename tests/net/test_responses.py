"""Reading whole answers of backends, through the transport and out of other streams."""

from __future__ import annotations

import pytest

from proxy.core.errors import UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable
from proxy.net.bodies import body_of
from tests.net.peer import CHUNKED, END, Peer, chunk, get, opened, serving

pytestmark = pytest.mark.anyio

PIECES = (b"one ", b"two ", b"three")
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n"
WHOLE = {
    "with its head": (LENGTH + b"".join(PIECES),),
    "behind its head": (LENGTH, b"".join(PIECES)),
    "in pieces": (LENGTH, *PIECES),
    "in chunks": (CHUNKED, *map(chunk, PIECES), END),
    "to the end": (b"HTTP/1.1 200 OK\r\n\r\n", *PIECES),
}


@pytest.mark.parametrize("parts", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("limit", [12, 13])
async def test_a_whole_answer_is_read_up_to_a_limit(parts: tuple[bytes, ...], limit: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(get(served))
        if limit < 13:
            with pytest.raises(UpstreamTooLarge):
                await body_of(response, limit)
        else:
            assert await body_of(response, limit) == b"".join(PIECES)


async def test_an_answer_that_breaks_off_is_none() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH, PIECES[0])

    async with serving(script) as served, opened() as transport:
        response = await transport.handle_async_request(get(served))
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            await body_of(response, 100)


async def test_a_backend_may_fall_silent() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH, PIECES[0])
        await peer.gone()

    async with serving(script) as served, opened(read_timeout=0.05) as transport:
        response = await transport.handle_async_request(get(served))
        with pytest.raises(UpstreamTimeout, match="fell silent"):
            await body_of(response, 100)
