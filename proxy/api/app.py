"""The FastAPI application: managed routes, Spillway's own, and a backend for everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain

from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import __version__
from proxy.api import live, models, ollama, own, stored
from proxy.api.access import globs_pattern
from proxy.api.dependencies import EXCHANGE, AlreadySent, Services, authorized
from proxy.api.models import ANTHROPIC
from proxy.api.paths import COUNTING, canonical
from proxy.core.errors import FAILED, BrokenOff, ClientError, InternalError
from proxy.dialects import CHAT, DIALECTS
from proxy.exchange import Exchange
from proxy.net.upstream import client_headers
from proxy.relay import Relay

_log = logging.getLogger("spillway.api")
_DIALECTS = {**DIALECTS, **COUNTING}
_DESCRIPTION = """\
Spillway's own endpoints. `POST /v1/chat/completions` is managed and every other path is passed to a backend: they are
OpenAI's and the backends' interfaces, and not described here."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
Handler = Callable[[Relay, Exchange], Awaitable[None]]


def _route(path: str, handler: Handler, methods: Collection[str]) -> Route:
    """A route of Starlette's for what is passed on: solving FastAPI's dependencies would take a tenth of a short request."""

    async def endpoint(request: Request) -> Response:
        services: Services = request.app.state.services
        await handler(services.relay, await authorized(request, services))
        return AlreadySent()

    return Route(path, endpoint, methods=methods, include_in_schema=False)


ROUTES: tuple[BaseRoute, ...] = (
    *(_route(path, partial(Relay.answer, dialect=dialect), ["POST"]) for path, dialect in DIALECTS.items()),
    *(_route(path, partial(Relay.count, dialect=dialect), ["POST"]) for path, dialect in COUNTING.items()),
    *chain.from_iterable(each.router.routes for each in (own, models, ollama, stored, live)),
    _route("/{path:path}", Relay.passthrough, ()),  # whatever the method
)
"""In the order in which they are tried; made once for all applications of a process."""


def create_api(services: Services, lifespan: Lifespan) -> FastAPI:
    """Build the application with these services; `lifespan` is entered while it serves."""
    app = FastAPI(
        title="Spillway",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.services = services
    app.router.routes += ROUTES
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


class Boundary:
    """ASGI middleware that checks every request, and turns every failure into an answer that its client understands."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = canonical(scope["method"], scope["path"])
        if path != scope["path"]:  # from here on nobody need know, least of all the backend
            scope["path"], scope["raw_path"] = path, path.encode()
        exchange = scope[EXCHANGE] = Exchange(scope, receive, send)
        try:
            self._services.access.check(exchange)
            client_headers.set(exchange.headers)
            await self._app(scope, receive, exchange.send)
        except asyncio.CancelledError:
            if (stopped := exchange.stopped()) is not None:
                await _refuse(exchange, stopped)
        except ClientError as error:
            if not exchange.authorized:
                self._services.relay.record_rejected(exchange, error)
            await _refuse(exchange, error)
        except BrokenOff:
            _log.warning("a response passed through broke off in its middle")
        except Exception as error:  # noqa: BLE001 - the request boundary: the client gets an error object, the log the trace
            _log.exception("request failed: %s", type(error).__name__)
            await _refuse(exchange, InternalError(FAILED))


async def _refuse(exchange: Exchange, error: ClientError) -> None:
    """Answer with an error; if an answer has begun, uvicorn closes the connection in its middle."""
    if not exchange.started:
        anthropic = exchange.header(ANTHROPIC.encode()) is not None
        usual = DIALECTS["/v1/messages"] if anthropic else CHAT
        await exchange.refuse(error, _DIALECTS.get(exchange.path, usual).refusal(error))
