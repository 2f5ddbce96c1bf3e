"""FastAPI dependencies of all routes: the services they use, the request as an exchange, and who may send it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.security import HTTPBearer
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from proxy.addons.live.checkpoints import TalkCheckpoints
from proxy.addons.live.looker import Looker
from proxy.addons.live.telling import Viewer
from proxy.addons.metrics import Metrics
from proxy.api.access import AccessControl
from proxy.api.live.gate import Gate
from proxy.attempts.emulating import CallLedger
from proxy.core.settings import Settings
from proxy.exchange import Exchange
from proxy.net.readiness import ReadinessProbe
from proxy.relay import Relay

EXCHANGE = "spillway.exchange"
"""Key of the exchange in the scope of a request."""

bearer = HTTPBearer(
    auto_error=False, description="A key of SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS, where there are any."
)
"""Describes the keys at /openapi.json; `authorized` and the others read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that routes use; in the application's state as `services`."""

    relay: Relay
    settings: Settings
    metrics: Metrics
    meter: Any
    ledger: CallLedger
    access: AccessControl
    readiness: ReadinessProbe
    gate: Gate
    looker: Looker
    checkpoints: TalkCheckpoints
    check_store: Callable[[], Awaitable[str]]


class AlreadySent(Response):
    """Returned by routes that have written their answer to the exchange."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


def services_of(request: Request) -> Services:
    """The services of the application that serves a request."""
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    return services_of(request)


async def authorized(request: Request) -> Exchange:
    """A request with a key, if there are keys."""
    exchange: Exchange = request.scope[EXCHANGE]
    services_of(request).access.authorize(exchange)
    return exchange


async def public(request: Request) -> Exchange:
    """A request that needs no key; one that has a key is told more."""
    exchange: Exchange = request.scope[EXCHANGE]
    services_of(request).access.authorize(exchange, optional=True)
    return exchange


async def viewing(request: Request) -> Exchange:
    """A request with a key, be it only an admin's."""
    exchange: Exchange = request.scope[EXCHANGE]
    services = services_of(request)
    services.access.authorize(exchange, viewer=services.gate.tenant)
    return exchange


async def scraping(request: Request) -> Exchange:
    """A request for metrics, which may need no key."""
    exchange: Exchange = request.scope[EXCHANGE]
    services = services_of(request)
    services.access.authorize(exchange, optional="metrics" in services.settings.allow)
    return exchange


async def _viewer(
    services: Annotated[Services, Depends(_services)], exchange: Annotated[Exchange, Depends(public)]
) -> Viewer:
    return services.gate.viewer(exchange)


On = Annotated[Services, Depends(_services)]
Authorized = Annotated[Exchange, Depends(authorized)]
Public = Annotated[Exchange, Depends(public)]
Viewing = Annotated[Exchange, Depends(viewing)]
CurrentViewer = Annotated[Viewer, Depends(_viewer)]
"""Whoever looks at Spillway; refused without a key, where one is needed."""
