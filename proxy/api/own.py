"""Spillway's own endpoints: typed FastAPI routes, described at `/openapi.json` and shown at `/docs`.

A backend's own paths of these names are hidden by them. The page at `/docs` loads Swagger UI from jsdelivr.net: without
that only `/openapi.json` is of use. The chat route and pass-through are none of these: see `proxy.api.routes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from proxy import __version__
from proxy.api import ollama
from proxy.api.endpoint import Endpoint
from proxy.api.listing import ANTHROPIC, all_models, one
from proxy.api.live.files import PREFIX, PageFiles, wants_page
from proxy.api.live.routes import live_router
from proxy.api.models import profiles
from proxy.api.paths import MODELS, SPELLED
from proxy.api.schemas import (
    Explanation,
    Health,
    KnownBackends,
    ModelList,
    ModelObject,
    OllamaModel,
    OllamaModels,
    OllamaVersion,
    Readiness,
)
from proxy.api.scope import EXCHANGE, Handed, On, exchange_of
from proxy.api.stored import stored_router
from proxy.api.surface import SURFACE, Surface
from proxy.dialects import CHAT, DIALECTS
from proxy.dialects.bodies import object_in, text_in
from proxy.exchange import Exchange
from proxy.relay import Relay

_MESSAGES = DIALECTS["/v1/messages"]
PASSED = "spillway.passed"
"""Where the scope keeps what passes its request on to a backend."""

_MODEL_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "required": ["model"]}}},
    }
}
_CHAT_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "required": ["messages"]}}},
    }
}


_DESCRIPTION = """\
Spillway's own endpoints. `POST /v1/chat/completions` is managed and every other path is passed to a backend: they are
OpenAI's and the backends' interfaces, and not described here."""


@cache
def own_application() -> FastAPI:
    """Spillway's own endpoints, the routes of the page, and what takes everything else.

    It takes as long to make as a proxy does to start, so that a process makes one for all: what a request stands on is
    in its scope, under `SURFACE`, and who passes it on under `PASSED`.
    """
    app = FastAPI(
        title="Spillway",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # ours check the host
        redoc_url=None,
        openapi_url=None,
    )
    for router in _own_routers():
        app.include_router(router)
    app.router.routes += _page()
    app.router.routes.append(Route("/{path:path}", _Plain(_pass_on), methods=None, include_in_schema=False))
    app.router.redirect_slashes = False
    # A path with a line break in it matches no route.
    unknown = app.router.default

    async def unmatched(scope: Scope, receive: Receive, send: Send) -> None:
        await (_pass_on if scope["type"] == "http" else unknown)(scope, receive, send)

    app.router.default = unmatched
    return app


def _own_routers() -> tuple[APIRouter, ...]:
    """All of them; those for orchestrators need no key, and tell only those all who have one."""
    return (
        *(_health(), _metrics(), _models(), _ollama()),
        *(stored_router(_route_class(watched=False)), live_router(_route_class(keyless=True, watched=False))),
        _documents(),
    )


def _health() -> APIRouter:
    router = APIRouter(route_class=_route_class(keyless=True), tags=["health"])

    @router.get("/healthz")
    @router.head("/healthz", include_in_schema=False)
    async def alive() -> Health:
        """Tell that the process answers."""
        return Health(status="ok")

    @router.get(
        "/readyz",
        response_model_exclude_unset=True,
        responses={503: {"model": Readiness, "description": "No backend answers."}},
    )
    @router.head("/readyz", include_in_schema=False)
    async def ready(on: On, request: Request, response: Response) -> Readiness:
        """Ask the backends whether one answers. A store that fails is told, but does not count."""
        backends = await on.readiness.kinds()
        exchange = exchange_of(request)
        draining = exchange.draining
        if draining or not any(backends.values()):
            response.status_code = 503
        told = Readiness(
            status="draining" if draining else "ready" if any(backends.values()) else "no backend answers"
        )
        if exchange.trusted:
            told.backends = backends
            told.store = await on.store.check()
        return told

    return router


def _metrics() -> APIRouter:
    router = _keyed(keyless=lambda on: on.metrics_open, tags=["health"])

    @router.get("/metrics", response_class=Response)
    async def metrics(on: On) -> Response:
        """Counters in Prometheus' text format."""
        return Response(on.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _models() -> APIRouter:
    router = _keyed(gated=True, tags=["models"])

    @router.get(MODELS, response_model=ModelList, response_model_exclude_unset=True)
    async def listing(on: On, request: Request) -> Any:
        """Give the union of all backends' models; in Anthropic's form to those who send `anthropic-version`."""
        path, asked = request.scope.get(SPELLED, MODELS), request.query_params
        return await all_models(on.relay.router, on.settings, path, asked, request.headers)

    @router.get(MODELS + "/{model:path}", response_model=ModelObject, response_model_exclude_unset=True)
    @router.get(
        "/models/{model:path}",
        response_model=ModelObject,
        response_model_exclude_unset=True,
        include_in_schema=False,
    )
    async def single(on: On, request: Request, model: str) -> Any:
        """Give one model; ids may contain slashes."""
        return await one(on.relay.router, on.settings, model, request.headers)

    @router.get("/spillway/models", response_model=KnownBackends, response_model_exclude_unset=True)
    async def known(on: On) -> dict[str, Any]:
        """Tell what is known of every backend and model, with the origin of every field."""
        return await profiles(on.relay.router, on.settings, on.meter, on.ledger)

    @router.post("/spillway/explain", response_model=Explanation, openapi_extra=_CHAT_BODY)
    async def explain(on: On, request: Request) -> Response:
        """Tell what would be done to a chat request, without asking a model."""
        return Handed(on.relay.explain, exchange_of(request))

    return router


def _ollama() -> APIRouter:
    """Ollama's own answers where an Ollama is behind, which knows more."""
    router = _keyed(watched=False, tags=["ollama"])

    async def told(relay: Relay, request: Request, answer: Callable[[], Awaitable[Any]]) -> Any:
        if await relay.router.owner(request.url.path) is not None:
            return Handed(relay.passthrough, exchange_of(request))
        return await answer()

    @router.get("/api/version", response_model=OllamaVersion, response_model_exclude_unset=True)
    async def version(on: On, request: Request) -> Any:
        """Tell which version of Ollama's API is answered."""
        return await told(on.relay, request, ollama.version)

    @router.get("/api/tags", response_model=OllamaModels, response_model_exclude_unset=True)
    async def tags(on: On, request: Request) -> Any:
        """List all backends' models in Ollama's form."""
        return await told(on.relay, request, partial(ollama.tags, on.relay.router))

    @router.get("/api/ps", response_model=OllamaModels, response_model_exclude_unset=True)
    async def loaded(on: On, request: Request) -> Any:
        """List the loaded ones, each with its window."""
        return await told(on.relay, request, partial(ollama.loaded, on.relay.router))

    @router.post(
        "/api/show",
        response_model=OllamaModel,
        response_model_exclude_unset=True,
        openapi_extra=_MODEL_BODY,
    )
    async def show(on: On, request: Request) -> Any:
        """Tell what is known of one model in Ollama's form."""

        async def shown() -> Any:
            asked = object_in(await exchange_of(request).body(on.settings.max_body))
            return await ollama.show(on.relay.router, text_in(asked, "model") or text_in(asked, "name"))

        return await told(on.relay, request, shown)

    return router


def _documents() -> APIRouter:
    # Like the page's files they hold nothing but the program, and a browser opens them without a key.
    router = _keyed(keyless=True, include_in_schema=False)

    @router.get("/openapi.json")
    async def schema(request: Request) -> dict[str, Any]:
        described: dict[str, Any] = request.app.openapi()
        return described

    @router.get("/docs")
    async def page() -> Response:
        return get_swagger_ui_html(openapi_url="openapi.json", title="Spillway", swagger_favicon_url="data:,")

    return router


def _anthropic(scope: Scope) -> bool:
    """Whether it was asked by a client of Anthropic's API, which understands no other answers, and errors."""
    return ANTHROPIC in Headers(scope=scope)


def _keyed(
    *,
    keyless: Callable[[Surface], bool] | bool = False,
    watched: bool = True,
    gated: bool = False,
    **options: Any,
) -> APIRouter:
    # For the description only: it is the endpoint that asks for keys, as on every other path.
    described = HTTPBearer(auto_error=False, description="A key from SPILLWAY_API_KEYS, where there are any.")
    route_class = _route_class(keyless=keyless, watched=watched, gated=gated)
    return APIRouter(route_class=route_class, dependencies=[Depends(described)], **options)


def _route_class(
    *, keyless: Callable[[Surface], bool] | bool = False, watched: bool = True, gated: bool = False
) -> type[APIRoute]:
    """Routes that ask for keys, tell errors and name requests as every other path does. `gated`: whoever may look may ask, too.

    `watched`: what they do is left when the client leaves; not where a request may be passed on, which sees to that.
    """

    class OwnRoute(APIRoute):
        @override
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            handle = super().handle

            async def answer(exchange: Exchange) -> None:
                scope[EXCHANGE] = exchange

                async def forward(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        await exchange.start(message["status"], message["headers"])
                    else:
                        exchange.ended |= not message.get("more_body", False)
                        await send(message)

                if (
                    not watched or exchange.method == "POST"
                ):  # its body is still to be read; then who reads it watches
                    await handle(scope, receive, forward)
                    return
                with exchange.watched():
                    await handle(scope, receive, forward)

            on: Surface = scope[SURFACE]
            endpoint = Endpoint(
                answer,
                on.door,
                keyless=keyless(on) if callable(keyless) else keyless,
                looks=on.gate.tenant if gated else None,
                refusal=_MESSAGES.refusal if _anthropic(scope) else CHAT.refusal,
            )
            await endpoint(scope, receive, send)

    return OwnRoute


def _page() -> list[Route]:
    """The page for people who look at it in a browser; to programs the root of a backend stays what it is."""

    async def root(scope: Scope, receive: Receive, send: Send) -> None:
        files = PageFiles()
        if not (files.there and wants_page(scope["headers"])):
            await _pass_on(scope, receive, send)
            return
        await Endpoint(files.index, scope[SURFACE].door, keyless=True)(scope, receive, send)

    async def one(scope: Scope, receive: Receive, send: Send) -> None:
        await Endpoint(PageFiles().answer, scope[SURFACE].door, keyless=True)(scope, receive, send)

    return [
        Route("/", _Plain(root), methods=["GET"], include_in_schema=False),
        Route(PREFIX + "{path:path}", _Plain(one), methods=["GET"], include_in_schema=False),
    ]


async def _pass_on(scope: Scope, receive: Receive, send: Send) -> None:
    await scope[PASSED](scope, receive, send)


class _Plain:
    """An application that Starlette does not take for a function that answers requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
