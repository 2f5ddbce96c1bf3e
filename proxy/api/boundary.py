"""The ASGI middleware around all routes: one exchange for each request, its checks, and errors in the client's dialect."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.dependencies import EXCHANGE, Services
from proxy.api.listing import ANTHROPIC
from proxy.api.paths import COUNTING, canonical
from proxy.core.errors import FAILED, BrokenOff, ClientError, InternalError
from proxy.dialects import CHAT, DIALECTS
from proxy.exchange import Exchange
from proxy.net.upstream import client_headers

_log = logging.getLogger("spillway.api")
_MESSAGES = DIALECTS["/v1/messages"]
_DIALECTS = {**DIALECTS, **COUNTING}
SPELLED = "spillway.spelled"
"""Key of the path as the client wrote it, in the scope of a request."""


class Boundary:
    """Turns every failure into an answer that a client understands."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[SPELLED] = scope["path"]
        path = canonical(scope["method"], scope["path"])
        if path != scope["path"]:  # from here on nobody need know, least of all the backend
            scope["path"], scope["raw_path"] = path, path.encode()
        exchange = scope[EXCHANGE] = Exchange(scope, receive, send)
        try:
            self._services.access.check(exchange)
            client_headers.set(exchange.headers)
            await self._app(scope, receive, exchange.send)
        except asyncio.CancelledError:
            if not await _is_answered(exchange):
                raise
        except ClientError as error:
            if not exchange.authorized:
                self._services.relay.record_rejected(exchange, error)
            await _refuse(exchange, error)
        except BrokenOff:
            _log.warning("a response passed through broke off in its middle")
        except Exception as error:  # noqa: BLE001 - the request boundary: the client gets an error object, the log the trace
            _log.exception("request failed: %s", type(error).__name__)
            await _refuse(exchange, InternalError(FAILED))


async def _is_answered(exchange: Exchange) -> bool:
    """Return whether a cancelled request may end here: the client is gone, or was sent an error since the server stops."""
    if (stopped := exchange.stopped()) is not None:
        await _refuse(exchange, stopped)
        return True
    task = asyncio.current_task()
    if exchange.gone and task is not None:
        task.uncancel()
    return exchange.gone


async def _refuse(exchange: Exchange, error: ClientError) -> None:
    """Answer with an error; if an answer has begun, uvicorn closes the connection in its middle."""
    if not exchange.started:
        await exchange.refuse(error, _error_body(exchange, error))


def _error_body(exchange: Exchange, error: ClientError) -> Any:
    dialect = _DIALECTS.get(exchange.path)
    if dialect is None:
        dialect = CHAT if exchange.header(ANTHROPIC.encode()) is None else _MESSAGES
    return dialect.refusal(error)
