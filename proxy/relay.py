"""Entry points of the API: a request is served by the pipeline, passed to a backend unchanged, or counted."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from proxy.attempts.passing import Addressed, ErrorEnding, address, address_read, pass_through
from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError, NotManaged, printable
from proxy.core.jsontext import dumps
from proxy.core.request import Managed
from proxy.exchange import Exchange, decoded, unique
from proxy.net.headers import AS_JSON
from proxy.observing import TAIL, observe
from proxy.outcome import CLIENT_DISCONNECTED, Outcome, Telemetry
from proxy.pipeline import Pipeline
from proxy.routing import Route, Router, is_managed

_log = logging.getLogger("spillway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Takes clients' exchanges and answers them."""

    pipeline: Pipeline
    router: Router
    telemetry: Telemetry
    manages_all: bool
    """Whether no chat passes through unmanaged, to a backend that might store answers of its own."""

    async def answer(self, exchange: Exchange, dialect: Dialect) -> None:
        """Answer a chat request in this dialect.

        Raises:
            ClientError: the request can't be served; nothing was sent yet.
        """
        limit, tail = self.pipeline.settings.max_body, bytearray()

        def hear(data: bytes) -> None:
            tail.extend(data[-TAIL:])
            del tail[:-TAIL]

        async with self._recorded(exchange, dialect.name) as outcome:
            wire = await exchange.body(limit)
            with exchange.watched():
                unmanaged = await self._unmanaged(exchange, dialect, wire)
                observed = unmanaged is not None and self._observes(exchange, unmanaged.route)
                if unmanaged is not None:
                    end = _ending(exchange, dialect, wire, limit)
                    await pass_through(exchange, outcome, unmanaged, end, hear if observed else None)
                else:
                    try:
                        await self.pipeline.serve(exchange, outcome, dialect, wire)
                    except NotManaged:
                        to = await self._addressed(exchange, dialect, wire, needs_model=True)
                        await pass_through(exchange, outcome, to)
            if observed:
                await observe(self.pipeline, exchange, outcome, dialect, wire, bytes(tail))

    async def passthrough(self, exchange: Exchange) -> None:
        """Pass any other request to the backend of the model that it names, else the owner of its path, else the first.

        Raises:
            ClientError: no backend answered, or the body can't be read.
            BrokenOff: the backend broke off in the middle of the body.
        """
        if exchange.path.endswith("/chat/completions"):
            _warn_of_unmanaged(exchange.path[:200])
        async with self._recorded(exchange) as outcome:
            to = await address(exchange, self.router, self.pipeline.settings.max_body)
            with exchange.watched():
                await pass_through(exchange, outcome, to)

    async def count(self, exchange: Exchange, dialect: Dialect) -> None:
        """Reply with the tokens of a prompt in this dialect, less what the client itself wants left out.

        Raises:
            ClientError: the request is malformed, or has to be passed through and no backend answered.
        """
        wire, line = await exchange.body(self.pipeline.settings.max_body), self.pipeline
        with exchange.watched():
            if (unmanaged := await self._unmanaged(exchange, dialect, wire)) is not None:
                await pass_through(exchange, self.telemetry.silent(), unmanaged)
                return
            request = await line.state.read(exchange, wire, dialect.read)
            request, route = await self.router.routed(request)
            body, cleared = await line.state.body_to_count(request, route)
            tokens = await line.counting.exact_count(route, body)
            counted: dict[str, Any] = {**dialect.count_head, "input_tokens": tokens}
            if request.edits:
                before = await line.counting.exact_count(route, request.body) if cleared else tokens
                counted["context_management"] = {"original_input_tokens": before}
            await exchange.reply(200, [AS_JSON], dumps(counted))

    async def _unmanaged(self, exchange: Exchange, dialect: Dialect, wire: bytes) -> Addressed | None:
        """Find the route and body of a chat request that has to be passed through; None if it is managed."""
        bypassed = exchange.header(b"x-spillway-bypass") == "1"
        if not bypassed and self.manages_all:
            return None
        to = await self._addressed(exchange, dialect, wire, needs_model=not bypassed)
        return to if bypassed or not is_managed(to.route, self.pipeline.settings) else None

    async def _addressed(self, exchange: Exchange, dialect: Dialect, wire: bytes, *, needs_model: bool) -> Addressed:
        """Find the route of a chat request, by the model in its path or its body; raises as `address_read`."""
        if dialect.model:
            return Addressed(await self.router.route(dialect.model), wire)
        limit = self.pipeline.settings.max_body
        return await address_read(exchange, self.router, wire, limit, needs_model=needs_model)

    def _observes(self, exchange: Exchange, route: Route) -> bool:
        """Return whether a request that passes through is observed: not one that asked to be left alone."""
        observed = self.pipeline.settings.for_model(route.model).strategy == "observe"
        return observed and exchange.header(b"x-spillway-bypass") != "1"

    @asynccontextmanager
    async def _recorded(self, exchange: Exchange, dialect: str = "") -> AsyncIterator[Outcome]:
        """Open the outcome of a request, and complete it whatever happens inside."""
        outcome = self.telemetry.open(exchange.id, exchange.headers, dialect=dialect, credential=exchange.tenant)
        try:
            yield outcome
        except ClientError as error:
            outcome.fail(error.status, error.label)
            raise
        except asyncio.CancelledError:
            if (stopped := exchange.take_cancellation()) is not None:
                outcome.fail(stopped.status, stopped.label)
                raise stopped from None
            if not exchange.delivered:
                outcome.fail(CLIENT_DISCONNECTED, "client_left")
            raise
        except Exception as error:  # recorded here, reported where it is answered
            outcome.fail(exchange.status or 500, type(error).__name__)
            raise
        finally:
            outcome.close(exchange.status)


@lru_cache(maxsize=64)
def _warn_of_unmanaged(path: str) -> None:
    """Log, once for each path, that chats there pass unmanaged.

    They are not moved to the managed path, because some services have chats of their own there.
    """
    _log.warning("chats at %s are passed on unmanaged: a client's base URL should end in /v1", printable(path))


def _ending(exchange: Exchange, dialect: Dialect, wire: bytes, limit: int) -> ErrorEnding:
    """Make the function that ends an unchanged stream, which answers this request, with an error."""

    def ending(error: ClientError) -> bytes:
        plain = decoded(wire, exchange.header(b"content-encoding"), limit)
        return dialect.writer(dialect.read(plain), unique(), Managed()).error(error.body())

    return ending
