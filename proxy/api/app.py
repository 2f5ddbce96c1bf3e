"""The FastAPI application: managed routes, Spillway's own, and a backend for everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain

from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from proxy import __version__
from proxy.api.access import globs_pattern
from proxy.api.boundary import Boundary
from proxy.api.dependencies import AlreadySent, Services, authorized, services_of
from proxy.api.live import routes as live
from proxy.api.own import health, metrics, models, ollama, pages
from proxy.api.paths import COUNTING
from proxy.api.stored import stored
from proxy.dialects import DIALECTS
from proxy.exchange import Exchange
from proxy.relay import Relay

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION = """\
Spillway's own endpoints. `POST /v1/chat/completions` is managed and every other path is passed to a backend: they are
OpenAI's and the backends' interfaces, and not described here."""

Handler = Callable[[Relay, Exchange], Awaitable[None]]


def _route(path: str, handler: Handler, methods: Collection[str]) -> Route:
    """A route of Starlette's for what is passed on: solving FastAPI's dependencies would take a tenth of a short request."""

    async def endpoint(request: Request) -> Response:
        exchange = await authorized(request)
        await handler(services_of(request).relay, exchange)
        return AlreadySent()

    return Route(path, endpoint, methods=methods, include_in_schema=False)


ROUTES: tuple[BaseRoute, ...] = (
    *(_route(path, partial(Relay.answer, dialect=dialect), ["POST"]) for path, dialect in DIALECTS.items()),
    *(_route(path, partial(Relay.count, dialect=dialect), ["POST"]) for path, dialect in COUNTING.items()),
    *chain.from_iterable(router.routes for router in (health, metrics, models, ollama, stored, live.router, pages)),
    _route("/{path:path}", Relay.passthrough, ()),  # whatever the method
)
"""In the order in which they are tried; made once for all applications of a process."""


def create_api(services: Services, lifespan: Lifespan) -> FastAPI:
    """The application with these services.

    Args:
        services: what its routes use.
        lifespan: entered while it serves.
    """
    app = FastAPI(
        title="Spillway",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # `pages` has them, behind the host check
        redoc_url=None,
        openapi_url=None,
    )
    app.state.services = services
    app.router.routes[:] = ROUTES
    app.add_middleware(Boundary, services=services)
    if origins := services.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"] if "*" in origins else [],
            allow_origin_regex=globs_pattern(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
            allow_private_network=True,
        )
    return app
