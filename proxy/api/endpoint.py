"""Turning an ASGI call into an exchange, and every failure into an answer a client understands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from proxy.api.door import Door
from proxy.dialects import CHAT
from proxy.errors import FAILED, BrokenOff, ClientError, InternalError
from proxy.exchange import Exchange
from proxy.net.upstream import client_headers

_log = logging.getLogger("spillway.api")

Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """A plain ASGI endpoint: no dependency injection and no response model on the hot route."""

    def __init__(
        self,
        handler: Handler,
        door: Door,
        *,
        keyless: bool = False,
        looks: Callable[[Exchange], str | None] | None = None,
        refusal: Callable[[ClientError], Any] = CHAT.refusal,
        turned_away: Callable[[Exchange, ClientError], None] | None = None,
    ) -> None:
        """Make it.

        Args:
            handler: answers a request.
            door: decides who is let in.
            keyless: whether the requests need no key, though others do.
            looks: tells whose a request is that comes without a key, and may look all the same.
            refusal: makes the body of an error, as the clients of this endpoint understand it.
            turned_away: is told of a request that was not let in.
        """
        self._handler = handler
        self._door = door
        self._keyless = keyless
        self._looks = looks
        self._refusal = refusal
        self._turned_away = turned_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        try:
            if self._let_in(exchange):
                client_headers.set(exchange.headers)
                await self._handler(exchange)
            else:
                await exchange.reply(204, (), b"")
        except asyncio.CancelledError:
            if not await self._may_end(exchange):
                raise
        except ClientError as error:
            await self._refuse(exchange, error)
        except BrokenOff:
            _log.warning("a response passed through broke off in its middle")
        except Exception as error:  # noqa: BLE001 - the request boundary: the client gets an error object, the log the trace
            _log.exception("request failed: %s", type(error).__name__)
            await self._refuse(exchange, InternalError(FAILED))

    async def _refuse(self, exchange: Exchange, error: ClientError) -> None:
        """Answer with an error; if an answer has begun, uvicorn closes the connection in its middle."""
        if not exchange.started:
            await exchange.refuse(error, self._refusal(error))

    async def _may_end(self, exchange: Exchange) -> bool:
        """Whether a request that was cancelled may end there: the client has left, or was told that the server stops."""
        if (stopped := exchange.stopped()) is not None:
            await self._refuse(exchange, stopped)
            return True
        task = asyncio.current_task()
        if exchange.gone and task is not None:
            task.uncancel()
        return exchange.gone

    def _let_in(self, exchange: Exchange) -> bool:
        try:
            return self._door.let_in(exchange, keyless=self._keyless, looks=self._looks)
        except ClientError as error:
            if self._turned_away is not None:
                self._turned_away(exchange, error)
            raise
