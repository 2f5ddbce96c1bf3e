"""All routes. The chat route comes first, because every route before it costs each chat request time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute, Route

from proxy.api.endpoint import Endpoint
from proxy.api.models import model_list, one_model, profiles
from proxy.errors import ModelNotFound
from proxy.exchange import Exchange
from proxy.options import Options
from proxy.relay import Relay
from proxy.stages.emulating import CallLedger
from proxy.telemetry.metrics import Metrics
from proxy.wire.jsontext import dumps

CHAT = "/v1/chat/completions"
JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What the routes stand on. `store_healthy` tells whether the store works."""

    relay: Relay
    options: Options
    metrics: Metrics
    meter: Any
    ledger: CallLedger
    keys: Sequence[str]
    store_healthy: Callable[[], bool]


def routes(surface: Surface) -> list[BaseRoute]:
    """The routes in the order in which they are tried; the last takes everything else."""
    relay, keys = surface.relay, surface.keys

    def route(
        path: str, handler: Callable[[Exchange], Awaitable[None]], *, open_to_all: bool = False
    ) -> Route:
        return Route(path, Endpoint(handler, () if open_to_all else keys), methods=None)

    models = ModelRoutes(surface)
    health = HealthRoutes(surface)
    return [
        Route(CHAT, chat_endpoint(surface), methods=["POST"]),
        Route("/v1/models", Endpoint(models.listing, keys), methods=["GET"]),
        Route("/v1/models/{model:path}", Endpoint(models.one, keys), methods=["GET"]),
        route("/healthz", health.alive, open_to_all=True),
        route("/readyz", health.ready, open_to_all=True),
        route("/metrics", health.metrics, open_to_all=True),
        route("/spillway/models", models.profiles),
        Route("/spillway/explain", Endpoint(relay.explain, keys), methods=["POST"]),
        route("/{path:path}", relay.passthrough),
    ]


def chat_endpoint(surface: Surface) -> Endpoint:
    """The managed route."""
    return Endpoint(surface.relay.chat, surface.keys)


class ModelRoutes:
    """What models there are."""

    def __init__(self, surface: Surface) -> None:
        self._on = surface

    async def listing(self, exchange: Exchange) -> None:
        """`GET /v1/models`."""
        await _json(exchange, await model_list(self._on.relay.router, self._on.options))

    async def one(self, exchange: Exchange) -> None:
        """`GET /v1/models/{id}`; ids may contain slashes.

        Raises:
            ModelNotFound: no backend lists it.
        """
        public = exchange.path.removeprefix("/v1/models/")
        found = await one_model(self._on.relay.router, self._on.options, public)
        if found is None:
            raise ModelNotFound(f"No backend lists the model {public!r}; GET /v1/models shows what there is.")
        await _json(exchange, found)

    async def profiles(self, exchange: Exchange) -> None:
        """`GET /spillway/models`."""
        on = self._on
        await _json(exchange, await profiles(on.relay.router, on.options, on.meter, on.ledger))


class HealthRoutes:
    """For orchestrators and Prometheus."""

    def __init__(self, surface: Surface) -> None:
        self._on = surface

    async def alive(self, exchange: Exchange) -> None:
        """`GET /healthz`: the process answers."""
        await _json(exchange, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """`GET /readyz`: a backend answers. 503 otherwise. A store that fails is told, but does not count."""
        upstreams = self._on.relay.router.upstreams
        kinds = {upstream.name: await upstream.prober.backend() for upstream in upstreams}
        backends = {name: None if backend is None else backend.kind for name, backend in kinds.items()}
        ready = any(backends.values())
        store = "ok" if self._on.store_healthy() else "failing, working without it"
        status = "ready" if ready else "no backend answers"
        await _json(exchange, {"status": status, "backends": backends, "store": store}, 200 if ready else 503)

    async def metrics(self, exchange: Exchange) -> None:
        """`GET /metrics`."""
        body = self._on.metrics.render()
        await exchange.reply(200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")], body)


async def _json(exchange: Exchange, value: Any, status: int = 200) -> None:
    body = dumps(value)
    await exchange.reply(status, [JSON, (b"content-length", str(len(body)).encode())], body)
