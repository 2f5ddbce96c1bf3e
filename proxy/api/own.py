"""Spillway's own endpoints, described at `/openapi.json`: health, metrics, models, Ollama's lists and the page.

A backend's own paths of these names are hidden by them. `/docs` loads Swagger UI from jsdelivr.net.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from proxy.api import ollama as ollama_lists
from proxy.api.boundary import SPELLED
from proxy.api.dependencies import (
    AlreadySent,
    Authorized,
    On,
    Public,
    Viewing,
    authorized,
    bearer,
    public,
    scraping,
    viewing,
)
from proxy.api.listing import all_models, one
from proxy.api.live.files import PREFIX, PageFiles, wants_page
from proxy.api.models import profiles
from proxy.api.paths import MODELS
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
from proxy.dialects.bodies import object_in, text_in
from proxy.exchange import Exchange
from proxy.relay import Relay

health = APIRouter(tags=["health"], dependencies=[Depends(public)])
metrics = APIRouter(tags=["health"], dependencies=[Depends(bearer), Depends(scraping)])
models = APIRouter(tags=["models"], dependencies=[Depends(bearer), Depends(viewing)])
ollama = APIRouter(tags=["ollama"], dependencies=[Depends(bearer), Depends(authorized)])
pages = APIRouter(include_in_schema=False)
"""They hold nothing but the program, and a browser opens them without a key."""


def _json_body(field: str) -> dict[str, Any]:
    """An operation's description: a JSON object with this field at least."""
    schema = {"type": "object", "required": [field]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# -- health


@health.get("/healthz")
@health.head("/healthz", include_in_schema=False)
async def healthz() -> Health:
    """Answer while the process runs."""
    return Health(status="ok")


@health.get(
    "/readyz",
    response_model_exclude_unset=True,
    responses={503: {"model": Readiness, "description": "No backend answers."}},
)
@health.head("/readyz", include_in_schema=False)
async def readyz(on: On, exchange: Public, response: Response) -> Readiness:
    """Ask the backends whether one answers. A store that fails is reported, but does not count."""
    backends = await on.readiness.kinds()
    ready = any(backends.values())
    if exchange.draining or not ready:
        response.status_code = 503
    readiness = Readiness(status="draining" if exchange.draining else "ready" if ready else "no backend answers")
    if exchange.trusted:
        readiness.backends = backends
        readiness.store = await on.check_store()
    return readiness


@metrics.get("/metrics", response_class=Response)
async def prometheus(on: On) -> Response:
    """Counters in Prometheus' text format."""
    return Response(on.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


# -- models


@models.get(MODELS, response_model=ModelList, response_model_exclude_unset=True)
async def list_models(on: On, request: Request) -> Any:
    """List all backends' models; in Anthropic's form to those who send `anthropic-version`."""
    path = request.scope[SPELLED]
    return await all_models(on.relay.router, on.settings, path, request.query_params, request.headers)


@models.get(MODELS + "/{model:path}", response_model=ModelObject, response_model_exclude_unset=True)
@models.get(
    "/models/{model:path}", response_model=ModelObject, response_model_exclude_unset=True, include_in_schema=False
)
async def get_model(on: On, request: Request, model: str) -> Any:
    """Describe one model; ids may contain slashes."""
    return await one(on.relay.router, on.settings, model, request.headers)


@models.get("/spillway/models", response_model=KnownBackends, response_model_exclude_unset=True)
async def known_models(on: On) -> dict[str, Any]:
    """Describe every backend and model, with the origin of every field."""
    return await profiles(on.relay.router, on.settings, on.meter, on.ledger)


@models.post("/spillway/explain", response_model=Explanation, openapi_extra=_json_body("messages"))
async def explain(on: On, exchange: Viewing) -> Response:
    """Report what would be done to a chat request, without asking a model."""
    await on.relay.explain(exchange)
    return AlreadySent()


# -- Ollama's own lists, where no Ollama is behind, which knows more


async def _unless_ollama(relay: Relay, exchange: Exchange, answer: Callable[[], Awaitable[Any]]) -> Any:
    if await relay.router.owner(exchange.path) is None:
        return await answer()
    await relay.passthrough(exchange)
    return AlreadySent()


@ollama.get("/api/version", response_model=OllamaVersion, response_model_exclude_unset=True)
async def version(on: On, exchange: Authorized) -> Any:
    """Report which version of Ollama's API is answered."""
    return await _unless_ollama(on.relay, exchange, ollama_lists.version)


@ollama.get("/api/tags", response_model=OllamaModels, response_model_exclude_unset=True)
async def tags(on: On, exchange: Authorized) -> Any:
    """List all backends' models in Ollama's form."""
    return await _unless_ollama(on.relay, exchange, partial(ollama_lists.tags, on.relay.router))


@ollama.get("/api/ps", response_model=OllamaModels, response_model_exclude_unset=True)
async def loaded(on: On, exchange: Authorized) -> Any:
    """List the loaded models, each with its window."""
    return await _unless_ollama(on.relay, exchange, partial(ollama_lists.loaded, on.relay.router))


@ollama.post(
    "/api/show", response_model=OllamaModel, response_model_exclude_unset=True, openapi_extra=_json_body("model")
)
async def show(on: On, exchange: Authorized) -> Any:
    """Describe one model in Ollama's form."""

    async def answer() -> Any:
        body = object_in(await exchange.body(on.settings.max_body))
        return await ollama_lists.show(on.relay.router, text_in(body, "model") or text_in(body, "name"))

    return await _unless_ollama(on.relay, exchange, answer)


# -- documentation and the page


@pages.get("/openapi.json")
async def openapi(request: Request, _: Public) -> dict[str, Any]:
    """Describe Spillway's own endpoints."""
    described: dict[str, Any] = request.app.openapi()
    return described


@pages.get("/docs")
async def docs(_: Public) -> Response:
    """Show the description in a browser."""
    return get_swagger_ui_html(openapi_url="openapi.json", title="Spillway", swagger_favicon_url="data:,")


@pages.api_route("/", methods=["GET", "HEAD"])
async def root(on: On, request: Request) -> Response:
    """Show the page to browsers; to programs the root of a backend stays what it is."""
    files = PageFiles()
    if files.there and wants_page(request.scope["headers"]):
        await files.index(await public(request))
    else:
        await on.relay.passthrough(await authorized(request))
    return AlreadySent()


@pages.api_route(PREFIX + "{path:path}", methods=["GET", "HEAD"])
async def page_file(exchange: Public) -> Response:
    """Serve a file of the page."""
    await PageFiles().answer(exchange)
    return AlreadySent()
