"""What Spillway's own routes find in the scope of a request: they are made once, for every application of the process."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from proxy.api.endpoint import Handler
from proxy.api.surface import SURFACE, Surface
from proxy.exchange import Exchange

EXCHANGE = "spillway.exchange"
"""Where a route's handler finds the exchange."""


async def _surface(request: Request) -> Surface:
    surface: Surface = request.scope[SURFACE]
    return surface


On = Annotated[Surface, Depends(_surface)]
"""What a route stands on."""


def exchange_of(request: Request) -> Exchange:
    """The request as Spillway has it."""
    exchange: Exchange = request.scope[EXCHANGE]
    return exchange


class Handed(Response):
    """An answer that is given past FastAPI, by whoever writes to the exchange."""

    def __init__(self, handler: Handler, exchange: Exchange) -> None:
        super().__init__()
        self._handler = handler
        self._exchange = exchange

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(self._exchange)
