"""FastAPI application: managed routes, Spillway's own, and one that passes everything else to a backend."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from proxy import __version__
from proxy.api import live, models, ollama, own, stored
from proxy.api.access import COUNTING, EXCHANGE, AlreadySent, Services, bearer, canonical, globs_pattern
from proxy.api.models import ANTHROPIC
from proxy.api.schemas import answers, takes
from proxy.core.dialect import Dialect
from proxy.core.errors import FAILED, BadRequest, BrokenOff, ClientError, InternalError
from proxy.dialects import CHAT, DIALECTS
from proxy.exchange import Exchange
from proxy.net.upstream import client_headers
from proxy.relay import Relay

_log = logging.getLogger("spillway.api")
_DIALECTS = [(compile_path(path)[0], each) for path, each in (*DIALECTS.items(), *COUNTING.items())]
_DESCRIPTION = """\
A proxy that keeps long conversations alive past a model's context window. What is not described here is passed to a backend as
it came; fields that are not described go on as they are."""
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
Handler = Callable[..., Awaitable[None]]


class ManagedRoute(APIRoute):
    """Route that FastAPI describes but does not resolve dependencies for: that would take a tenth of a short request's time."""

    # FastAPI's dependencies took 30 µs of each request.

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def _endpoint(handler: Handler, *dialects: Dialect) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def endpoint(request: Request) -> Response:
        services: Services = request.app.state.services
        exchange: Exchange = request.scope[EXCHANGE]
        services.access.authorize(exchange)
        parts = request.path_params
        model = parts.get("model", "")
        given = [replace(each, model=model, read=partial(each.read, **parts)) if parts else each for each in dialects]
        await handler(services.relay, exchange, *given)
        return AlreadySent()

    return endpoint


def _managed(path: str, dialect: Dialect, handler: Handler, summary: str, answer: str = "") -> BaseRoute:
    body, usual, required = dialect.described
    return ManagedRoute(
        path,
        _endpoint(handler, dialect),
        methods=["POST"],
        name=path,
        summary=summary,
        tags=["chat"],
        responses=answers(answer or usual, or_stream=not answer),
        openapi_extra=takes(body, required),
        dependencies=[Depends(bearer)],
    )


ROUTES: tuple[BaseRoute, ...] = (
    *(_managed(path, each, Relay.answer, "Answer a chat") for path, each in DIALECTS.items()),
    *(_managed(path, each, Relay.count, "Count tokens", "Tokens") for path, each in COUNTING.items()),
    *chain.from_iterable(each.router.routes for each in (own, models, ollama, stored, live)),
    Route("/{path:path}", _endpoint(Relay.passthrough), methods=()),  # for any method
)
"""Routes in the order in which they are tried; made once for all applications of a process."""


async def _invalid(_: Request, error: Exception) -> Response:
    """Turn FastAPI's refusal of a query into a `BadRequest`, so that it is answered like any other error.

    Raises:
        BadRequest: always.
    """
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    raise BadRequest(f"`{first['loc'][-1]}`: {first['msg']}.", param=str(first["loc"][-1]))


def create_api(services: Services, lifespan: Lifespan) -> FastAPI:
    """Build the application with these services; `lifespan` is a context entered while it serves."""
    app = FastAPIOffline(
        title="Spillway",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        exception_handlers={RequestValidationError: _invalid},
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


def _take_root_off(scope: Scope) -> None:
    """Remove the root path from the request's path, repeatedly: a proxy may have left it there, and uvicorn adds it again."""
    root, path, target = scope["root_path"], scope["path"], scope["raw_path"]
    while (target + b"/").startswith(f"{root}/".encode()):
        path, target = path[len(root) :] or "/", target[len(root) :] or b"/"
    scope.update(root_path="", path=path, raw_path=target)


class Boundary:
    """ASGI middleware that checks every request, and turns every failure into an error in the form of the client's dialect."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope.get("root_path"):
            _take_root_off(scope)
        path = canonical(scope["method"], scope["path"])
        if path != scope["path"]:  # routes, and backends above all, only see the canonical path
            scope["path"], scope["raw_path"] = path, path.encode()
        exchange = scope[EXCHANGE] = Exchange(scope, receive, send)
        try:
            self._services.access.check(exchange)
            client_headers.set(exchange.headers)
            await self._app(scope, receive, exchange.send)
        except asyncio.CancelledError:
            if (stopped := exchange.take_cancellation()) is not None:
                await _refuse(exchange, stopped)
        except ClientError as error:
            if not exchange.authorized:
                self._services.relay.telemetry.record_rejected(exchange.id, error.status, error.label)
            await _refuse(exchange, error)
        except BrokenOff:
            _log.warning("a response that was passed through broke off")
        except Exception as error:  # noqa: BLE001 - the request boundary: the client gets an error object, the log the trace
            _log.exception("request failed: %s", type(error).__name__)
            await _refuse(exchange, InternalError(FAILED))


async def _refuse(exchange: Exchange, error: ClientError) -> None:
    """Answer with an error; if the answer has begun already, uvicorn closes the connection instead."""
    if not exchange.started:
        anthropic = exchange.header(ANTHROPIC.encode()) is not None
        usual = DIALECTS["/v1/messages"] if anthropic else CHAT
        dialect = next((each for pattern, each in _DIALECTS if pattern.match(exchange.path)), usual)
        await exchange.refuse(error, dialect.refusal(error))
