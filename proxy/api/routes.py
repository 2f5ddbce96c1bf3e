"""All routes, and what goes around FastAPI: the managed routes and pass-through.

A body that may be passed on as the bytes it is gains nothing from being parsed into a model and checked, and an answer
that is passed on while it arrives gains nothing from a response class; both would pay for it on every request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.endpoint import Endpoint
from proxy.api.paths import SPELLED, canonical
from proxy.api.surface import SURFACE, Surface
from proxy.dialects import DIALECTS

Lifespan = Callable[["Application"], AbstractAsyncContextManager[None]]


class Application:
    """The managed routes, one for each dialect, and FastAPI behind them for all else.

    FastAPI has nothing to do for those, and would cost a fifth of a short request's CPU. It is imported, and Spillway's own
    routes are made, when the first request comes that is none of them: that takes as long as the rest of the start.
    """

    def __init__(self, surface: Surface, lifespan: Lifespan) -> None:
        """Make it.

        Args:
            surface: what the routes stand on.
            lifespan: what is open while it serves.
        """
        self.surface = surface
        self.lifespan = lifespan
        self._life = Router(lifespan=lifespan)
        self._rest: ASGIApp | None = None
        self._making: asyncio.Future[ASGIApp] | None = None
        managed = _managed(surface)
        self._spelled = {
            spelled: (path, path.encode(), managed.get(path, self._otherwise))
            for spelled, path in canonical(managed).items()
        }
        """By method and path as they were spelled: the path that is meant, and what serves it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        kind = scope["type"]
        if kind == "http":
            path = scope["path"]
            meant = self._spelled.get((scope["method"], path))
            if meant is not None:
                # From here on nobody need know how it was spelled, least of all the backend.
                scope[SPELLED] = path
                scope["path"], scope["raw_path"], app = meant
                await app(scope, receive, send)
                return
        elif kind == "lifespan":
            await self._life.lifespan(scope, receive, send)
            return
        await self._otherwise(scope, receive, send)

    async def _otherwise(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._rest is None:
            if self._making is None:
                # In a thread: nobody else need wait for it.
                self._making = asyncio.get_running_loop().run_in_executor(None, self._make)
            # Those who wait for it may leave.
            self._rest = await asyncio.shield(self._making)
        await self._rest(scope, receive, send)

    def _make(self) -> ASGIApp:
        from proxy.api.own import PASSED, own_application  # noqa: PLC0415 - FastAPI: see above

        relay, own = self.surface.relay, own_application()
        passed = Endpoint(relay.passthrough, self.surface.door, turned_away=relay.turned_away)

        async def standing(scope: Scope, receive: Receive, send: Send) -> None:
            scope[SURFACE], scope[PASSED] = self.surface, passed
            await own(scope, receive, send)

        return standing


def _managed(surface: Surface) -> Mapping[str, ASGIApp]:
    """By their paths."""
    relay, door = surface.relay, surface.door
    managed: dict[str, ASGIApp] = {
        path: Endpoint(
            partial(relay.answer, dialect=dialect),
            door,
            refusal=dialect.refusal,
            turned_away=relay.turned_away,
        )
        for path, dialect in DIALECTS.items()
    }
    managed |= {
        path: Endpoint(partial(relay.count, dialect=dialect), door, refusal=dialect.refusal)
        for dialect in set(DIALECTS.values())
        for path in dialect.counts
    }
    return managed
