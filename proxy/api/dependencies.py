"""FastAPI dependencies of all routes: the services they use, the request as an exchange, and who may send it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.security import HTTPBearer
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from proxy.addons.compact_now import CompactNow
from proxy.addons.conversation_summary import ConversationSummaries
from proxy.addons.history import RequestHistory
from proxy.addons.metrics import Metrics
from proxy.api.access import AccessControl
from proxy.attempts.calls import CallLedger
from proxy.core.jsontext import dumps
from proxy.core.settings import Settings
from proxy.exchange import Exchange
from proxy.net.upstream import ReadinessProbe
from proxy.relay import Relay

EXCHANGE = "spillway.exchange"
"""Key of the exchange in the scope of a request."""

bearer = HTTPBearer(
    auto_error=False, description="A key of SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS, where there are any."
)
"""Describes the keys at /openapi.json; `AccessControl` reads them."""


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
    history: RequestHistory
    summaries: ConversationSummaries
    compact_now: CompactNow
    check_store: Callable[[], Awaitable[str]]


class AlreadySent(Response):
    """Returned by routes that have written their answer to the exchange."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


def as_json(value: Any) -> Response:
    """Build a response that no cache stores."""
    return Response(dumps(value), media_type="application/json", headers={"cache-control": "no-store"})


async def services_of(request: Request) -> Services:
    """Return the services of the application that serves a request."""
    services: Services = request.app.state.services
    return services


On = Annotated[Services, Depends(services_of)]


def _exchange(**demand: bool) -> Callable[[Request, Services], Awaitable[Exchange]]:
    """Make the dependency for a request that `AccessControl.authorize` lets in, with this demand."""

    async def exchange_of(request: Request, on: On) -> Exchange:
        exchange: Exchange = request.scope[EXCHANGE]
        on.access.authorize(exchange, **demand)
        return exchange

    return exchange_of


authorized = _exchange()
"""A request with a key, if there are keys."""
public = _exchange(optional=True)
"""A request that needs no key; one that has a key is shown more."""
viewing = _exchange(viewers=True)
"""A request with a key, be it only an admin's."""

Authorized = Annotated[Exchange, Depends(authorized)]
Public = Annotated[Exchange, Depends(public)]
Viewing = Annotated[Exchange, Depends(viewing)]
