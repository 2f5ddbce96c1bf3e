"""All routes, and what goes around FastAPI: the managed routes and pass-through.

A body that may be passed on as the bytes it is gains nothing from being parsed into a model and checked, and an answer
that is passed on while it arrives gains nothing from a response class; both would pay for it on every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from proxy.api.door import Door
from proxy.api.endpoint import Endpoint
from proxy.api.live.files import PREFIX, PageFiles, wants_page
from proxy.api.own import own_routers
from proxy.api.paths import SPELLED, canonical
from proxy.api.surface import Surface
from proxy.dialects import DIALECTS, EMBEDDING
from proxy.dialects.completions import PATH


class Application(FastAPI):
    """FastAPI, with the managed routes, one for each dialect, in front of all that it does.

    It has nothing to do for those, and costs a fifth of a short request's CPU.
    """

    spelled: Mapping[tuple[str, str], tuple[str, bytes, ASGIApp]]
    """By method and path as they were spelled: the path that is meant, and what serves it."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meant = self.spelled.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if meant is None:
            await super().__call__(scope, receive, send)
            return
        # From here on nobody need know how it was spelled, least of all the backend.
        scope[SPELLED] = scope["path"]
        scope["path"], scope["raw_path"], app = meant
        await app(scope, receive, send)

    def serve(self, surface: Surface) -> None:
        """Install all routes; the last takes everything else."""
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
        refusal = DIALECTS["/api/chat"].refusal
        managed |= {path: Endpoint(relay.embed, door, refusal=refusal) for path in EMBEDDING}
        otherwise = super().__call__
        managed[PATH] = Endpoint(relay.complete, door, turned_away=relay.turned_away)
        self.spelled = {
            spelled: (path, path.encode(), managed.get(path, otherwise))
            for spelled, path in canonical(managed).items()
        }
        for router in own_routers(surface):
            self.include_router(router)
        passed = Endpoint(relay.passthrough, door, turned_away=relay.turned_away)
        self.router.routes += _page(door, passed)
        self.router.routes.append(Route("/{path:path}", passed, methods=None, include_in_schema=False))
        self.router.redirect_slashes = False
        # A path with a line break in it matches no route.
        unknown = self.router.default

        async def unmatched(scope: Scope, receive: Receive, send: Send) -> None:
            await (passed if scope["type"] == "http" else unknown)(scope, receive, send)

        self.router.default = unmatched


def _page(door: Door, passed: ASGIApp) -> list[Route]:
    """The page for people who look at it in a browser; to programs the root of a backend stays what it is."""
    files = PageFiles()
    index = Endpoint(files.index, door, keyless=True)

    async def root(scope: Scope, receive: Receive, send: Send) -> None:
        await (index if files.there and wants_page(scope["headers"]) else passed)(scope, receive, send)

    one = Endpoint(files.answer, door, keyless=True)
    return [
        Route("/", _Plain(root), methods=["GET"], include_in_schema=False),
        Route(PREFIX + "{path:path}", one, methods=["GET"], include_in_schema=False),
    ]


class _Plain:
    """An application that Starlette does not take for a function that answers requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
