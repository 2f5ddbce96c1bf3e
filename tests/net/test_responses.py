"""Reading whole answers of backends, through the transport and out of other streams."""

import pytest

from proxy.core.errors import UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable
from proxy.net.transport import body_of
from tests.net.peer import CHUNKED, END, Peer, chunk, get, opened, serving

pytestmark = pytest.mark.anyio

PIECES = (b"one ", b"two ", b"three")
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n"
WHOLE = {
    "with its head": (LENGTH + b"".join(PIECES),), "behind its head": (LENGTH, b"".join(PIECES)),
    "in pieces": (LENGTH, *PIECES), "in chunks": (CHUNKED, *map(chunk, PIECES), END),
    "to the end": (b"HTTP/1.1 200 OK\r\n\r\n", *PIECES),
}  # fmt: skip


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


@pytest.mark.parametrize(("silent", "error"), [(False, UpstreamUnavailable), (True, UpstreamTimeout)])
async def test_an_answer_that_breaks_off_is_none(silent: bool, error: type[UpstreamUnavailable]) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH, PIECES[0])
        if silent:
            await peer.gone()

    async with serving(script) as served, opened(read_timeout=0.05 if silent else 20.0) as transport:
        response = await transport.handle_async_request(get(served))
        with pytest.raises(error, match="fell silent" if silent else "broke off"):
            await body_of(response, 100)
