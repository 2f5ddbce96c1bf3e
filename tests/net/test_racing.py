"""A host with several addresses: whoever leaves as the race is over has left."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest

from proxy.net import transport as module
from proxy.net.transport import build_request
from tests.net.peer import DEADLINE, OK, Peer, opened, serving, until

pytestmark = pytest.mark.anyio

SLOW = "192.0.2.1"


async def test_a_cancellation_that_comes_as_the_losers_are_ended_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def script(peer: Peer) -> None:
        if (request := await peer.request())[0]:
            asked.append(request[0])
            await peer.send(OK)

    async with serving(script) as served, opened() as transport:

        async def addresses(*_: object, **__: object) -> list[Any]:
            known = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*known, (host, served.port)) for host in (SLOW, "127.0.0.1")]

        async def connecting(sock: socket.socket, address: tuple[str, int]) -> None:
            if address[0] != SLOW:
                await connect(sock, address)
                return
            try:
                await asyncio.Event().wait()
            finally:  # it has lost
                asking.cancel()

        monkeypatch.setattr(module, "RACE_DELAY", 0.01)
        monkeypatch.setattr(loop, "getaddrinfo", addresses)
        monkeypatch.setattr(loop, "sock_connect", connecting)
        request = build_request("POST", httpx.URL(f"http://two.invalid:{served.port}"), [], b"")
        asking = asyncio.ensure_future(transport.handle_async_request(request))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(asking), DEADLINE)
        await until(lambda: served.connections == 1)
    assert not asked
