"""Spillway's own endpoints: typed FastAPI routes, described at `/openapi.json` and shown at `/docs`.

A backend's own paths of these names are hidden by them. The page at `/docs` loads Swagger UI from jsdelivr.net: without
that only `/openapi.json` is of use. The chat route and pass-through are none of these: see `proxy.api.routes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from proxy import __version__
from proxy.api import ollama
from proxy.api.door import Door
from proxy.api.endpoint import Endpoint, Handler
from proxy.api.listing import ANTHROPIC, all_models, one
from proxy.api.live.gate import Gate
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
from proxy.api.stored import stored_router
from proxy.api.surface import Surface
from proxy.asgi import AsgiMessage
from proxy.dialects import CHAT, DIALECTS
from proxy.dialects.bodies import object_in, text_in
from proxy.exchange import Exchange

_MESSAGES = DIALECTS["/v1/messages"]
_EXCHANGE = "spillway.exchange"
"""Where a route's handler finds the exchange in the scope."""

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


def own_application(surface: Surface, page: Sequence[Route], passed: ASGIApp) -> FastAPI:
    """Spillway's own endpoints, the routes of the page, and what takes everything else."""
    app = FastAPI(
        title="Spillway",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # ours ask for a key where there is one
        redoc_url=None,
        openapi_url=None,
    )
    for router in _own_routers(surface):
        app.include_router(router)
    app.router.routes += page
    app.router.routes.append(Route("/{path:path}", passed, methods=None, include_in_schema=False))
    app.router.redirect_slashes = False
    # A path with a line break in it matches no route.
    unknown = app.router.default

    async def unmatched(scope: Scope, receive: Receive, send: Send) -> None:
        await (passed if scope["type"] == "http" else unknown)(scope, receive, send)

    app.router.default = unmatched
    return app


def _own_routers(surface: Surface) -> tuple[APIRouter, ...]:
    """All of them; those for orchestrators need no key, and tell only those all who have one."""
    looked_at = live_router(
        surface, _route_class(surface.door, keyless=True, watched=False), _Handed, _EXCHANGE
    )
    kept = stored_router(surface, _route_class(surface.door, watched=False), _Handed, _EXCHANGE)
    return (
        *(_health(surface), _metrics(surface), _models(surface), _ollama(surface)),
        *(kept, looked_at, _documents(surface.door, surface.gate)),
    )


def _health(on: Surface) -> APIRouter:
    router = APIRouter(route_class=_route_class(on.door, keyless=True), tags=["health"])

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
    async def ready(request: Request, response: Response) -> Readiness:
        """Ask the backends whether one answers. A store that fails is told, but does not count."""
        backends = await on.readiness.kinds()
        draining = request.scope[_EXCHANGE].draining
        if draining or not any(backends.values()):
            response.status_code = 503
        told = Readiness(
            status="draining" if draining else "ready" if any(backends.values()) else "no backend answers"
        )
        if request.scope[_EXCHANGE].trusted:
            told.backends = backends
            told.store = await on.store.check()
        return told

    return router


def _metrics(on: Surface) -> APIRouter:
    router = _keyed(on.door, keyless=on.metrics_open, tags=["health"])

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(on.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _models(on: Surface) -> APIRouter:
    router = _keyed(on.door, gate=on.gate, tags=["models"])
    relay = on.relay

    @router.get(MODELS, response_model=ModelList, response_model_exclude_unset=True)
    async def listing(request: Request) -> Any:
        """Give the union of all backends' models; in Anthropic's form to those who send `anthropic-version`."""
        path, asked = request.scope.get(SPELLED, MODELS), request.query_params
        return await all_models(relay.router, on.options, path, asked, anthropic=_anthropic(request.scope))

    @router.get(MODELS + "/{model:path}", response_model=ModelObject, response_model_exclude_unset=True)
    @router.get(
        "/models/{model:path}",
        response_model=ModelObject,
        response_model_exclude_unset=True,
        include_in_schema=False,
    )
    async def single(request: Request, model: str) -> Any:
        """Give one model; ids may contain slashes."""
        return await one(relay.router, on.options, model, anthropic=_anthropic(request.scope))

    @router.get("/spillway/models", response_model=KnownBackends, response_model_exclude_unset=True)
    async def known() -> dict[str, Any]:
        """Tell what is known of every backend and model, with the origin of every field."""
        return await profiles(relay.router, on.options, on.meter, on.ledger)

    @router.post("/spillway/explain", response_model=Explanation, openapi_extra=_CHAT_BODY)
    async def explain(request: Request) -> Response:
        """Tell what would be done to a chat request, without asking a model."""
        return _Handed(relay.explain, request.scope[_EXCHANGE])

    return router


def _ollama(on: Surface) -> APIRouter:
    """Ollama's own answers where an Ollama is behind, which knows more."""
    router = _keyed(on.door, watched=False, tags=["ollama"])
    relay = on.relay

    async def told(request: Request, answer: Callable[[], Awaitable[Any]]) -> Any:
        if await relay.router.owner(request.url.path) is not None:
            return _Handed(relay.passthrough, request.scope[_EXCHANGE])
        return await answer()

    @router.get("/api/version", response_model=OllamaVersion, response_model_exclude_unset=True)
    async def version(request: Request) -> Any:
        """Tell which version of Ollama's API is answered."""
        return await told(request, ollama.version)

    @router.get("/api/tags", response_model=OllamaModels, response_model_exclude_unset=True)
    async def tags(request: Request) -> Any:
        """List all backends' models in Ollama's form."""
        return await told(request, partial(ollama.tags, relay.router, on.options))

    @router.get("/api/ps", response_model=OllamaModels, response_model_exclude_unset=True)
    async def loaded(request: Request) -> Any:
        """List the loaded ones, each with its window."""
        return await told(request, partial(ollama.loaded, relay.router))

    @router.post(
        "/api/show",
        response_model=OllamaModel,
        response_model_exclude_unset=True,
        openapi_extra=_MODEL_BODY,
    )
    async def show(request: Request) -> Any:
        """Tell what is known of one model in Ollama's form."""

        async def shown() -> Any:
            exchange: Exchange = request.scope[_EXCHANGE]
            asked = object_in(await exchange.body(relay.options.max_body))
            return await ollama.show(
                relay.router, on.options, text_in(asked, "model") or text_in(asked, "name")
            )

        return await told(request, shown)

    return router


def _documents(door: Door, gate: Gate) -> APIRouter:
    router = _keyed(door, gate=gate, include_in_schema=False)

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
    return any(name == ANTHROPIC for name, _ in scope["headers"])


def _keyed(
    door: Door, *, keyless: bool = False, watched: bool = True, gate: Gate | None = None, **options: Any
) -> APIRouter:
    # For the description only: it is the endpoint that asks for keys, as on every other path.
    described = HTTPBearer(auto_error=False, description="A key from SPILLWAY_API_KEYS, where there are any.")
    route_class = _route_class(door, keyless=keyless, watched=watched, gate=gate)
    return APIRouter(route_class=route_class, dependencies=[Depends(described)], **options)


def _route_class(
    door: Door, *, keyless: bool = False, watched: bool = True, gate: Gate | None = None
) -> type[APIRoute]:
    """Routes that ask for keys, tell errors and name requests as every other path does. `gate`: tells who may look, too.

    `watched`: what they do is left when the client leaves; not where a request may be passed on, which sees to that.
    """

    class OwnRoute(APIRoute):
        @override
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            handle = super().handle

            async def answer(exchange: Exchange) -> None:
                scope[_EXCHANGE] = exchange

                async def forward(message: AsgiMessage) -> None:
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

            refusal = _MESSAGES.refusal if _anthropic(scope) else CHAT.refusal
            looks = None if gate is None else gate.tenant
            endpoint = Endpoint(answer, door, keyless=keyless, looks=looks, refusal=refusal)
            await endpoint(scope, receive, send)

    return OwnRoute


class _Handed(Response):
    """An answer that is given past FastAPI, by whoever writes to the exchange."""

    def __init__(self, handler: Handler, exchange: Exchange) -> None:
        super().__init__()
        self._handler = handler
        self._exchange = exchange

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(self._exchange)
