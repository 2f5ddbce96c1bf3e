"""A fake that stands in front of other fakes and hands requests on to them over HTTP, streams piece by piece."""

from collections.abc import Iterable

import httpx
from typing_extensions import override

from tests.fakes.base import HttpFake
from tests.fakes.brains import echo
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.model import Brain

_HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding"})


class Forwarding(HttpFake):
    """It has no model of its own. Who is in front says what becomes of bodies."""

    @override
    def default_brain(self) -> Brain:
        return echo  # never asked

    def told(self, exchange: Exchange, status: int, body: bytes) -> tuple[int, bytes]:
        """What the client gets of a whole answer."""
        del exchange
        return status, body

    def told_piece(self, exchange: Exchange, piece: bytes) -> bytes:
        """What the client gets of a piece of a stream."""
        del exchange
        return piece

    async def hand_on(self, exchange: Exchange, url: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Ask `url` the same, and answer as it does. When the client goes away, so does this request."""
        request = exchange.request
        kept = [(name, value) for name, value in request.headers if name not in _HOP]
        async with (
            # Of its own for each request: a client belongs to one event loop. `verify` only saves reading certificates.
            httpx.AsyncClient(trust_env=False, timeout=None, verify=False) as client,
            client.stream(request.method, url, content=body, headers=kept) as reply,
        ):
            kind = reply.headers.get("content-type", "")
            if not kind.startswith(EVENT_STREAM):
                status, whole = self.told(exchange, reply.status_code, await reply.aread())
                await self._send_whole(exchange, status, whole, [("content-type", kind), *headers])
                return
            if not exchange.started:
                await exchange.open(reply.status_code, EVENT_STREAM, headers)
            try:
                async for piece in reply.aiter_raw():
                    await exchange.write(self.told_piece(exchange, piece))
            except httpx.TransportError:
                await exchange.cut()
                return
            await exchange.close()

    async def _send_whole(self, exchange: Exchange, status: int, whole: bytes, headers: list[tuple[str, str]]) -> None:
        if exchange.started:  # of a stream that was begun, its status and headers are out
            await exchange.write(whole)
            await exchange.close()
        else:
            await exchange.answer(status, whole, headers)
