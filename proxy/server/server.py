"""uvicorn's server with Spillway's connections, and a way of stopping that ends every answer in good order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from typing_extensions import override

from proxy.memory import keep_apart
from proxy.server.connection import ClientConnection
from proxy.server.guard import Guard
from proxy.server.limits import Limits

_log = logging.getLogger("spillway.server")

LAST_WORDS = 1.0
"""Seconds in which answers that were ended are read by their clients, and then in which the application closes."""
_TICK = 0.05
"""Seconds between looks at whether a second signal came."""


class Server(uvicorn.Server):
    """Serves until a signal comes; then for as long as answers run, but at most for the time that it is given.

    While it is being stopped it still listens, so that new requests are told so and not just refused a connection.
    A second signal ends that at once.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        limits: Limits,
        graceful: float,
        started: Callable[[int], None] | None = None,
    ) -> None:
        """Make it.

        Args:
            app: the ASGI application.
            host: address to listen on.
            port: to listen on; 0: any free one.
            limits: what clients may take.
            graceful: seconds that answers get to end by themselves once a signal came.
            started: is called with the port, once it listens.
        """
        self._stop = False
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = Guard(limits)
        self.intake = self._guard.intake
        """What all requests of clients hold together."""
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=partial(ClientConnection, self._guard),  # type: ignore[arg-type]  # it is only called
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,  # the upstream's own headers pass
            date_header=False,
        )
        super().__init__(config)
        self._graceful = graceful
        self._on_started = started

    @property
    def port(self) -> int:
        """On which it listens."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    @property  # type: ignore[explicit-override]  # mypy does not see the decorator of a property
    @override
    def should_exit(self) -> bool:
        """Whether it is to stop. May be set from any thread, and by a signal: that wakes who waits for it.

        uvicorn's own loop looks at it ten times a second.
        """
        return self._stop

    @should_exit.setter
    def should_exit(self, stop: bool) -> None:
        self._stop = stop
        if stop and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    @override
    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if not self.should_exit:
                await self._stopped.wait()
        finally:
            self._loop = None

    @override
    async def startup(self, sockets: Any = None) -> None:
        keep_apart()
        await super().startup(sockets=sockets)
        if self.started and self._on_started is not None:
            self._on_started(self.port)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not noted as captured: uvicorn would raise it again at the end, and the exit status be that of a killed process.
        self.force_exit = self.should_exit
        self.should_exit = True

    @override
    async def shutdown(self, sockets: Any = None) -> None:
        intake = self.intake
        intake.draining = True
        self._close_idle()
        if running := len(self.server_state.tasks):
            _log.info("stopping: %d requests get %g s to end", running, self._graceful)
        await self._until(self._all_told, self._graceful)
        for server in self.servers:
            server.close()
        intake.stopping = True
        for task in tuple(self.server_state.tasks):
            task.cancel()
        await self._until(lambda: not self.server_state.tasks, LAST_WORDS)
        self._close_idle()
        await self._until(lambda: not self.server_state.connections, LAST_WORDS)
        for connection in tuple(self.server_state.connections):
            connection.abort()  # type: ignore[union-attr]  # they are all ours
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS if self.force_exit else None):
                await self.lifespan.shutdown()

    def _all_told(self) -> bool:
        """Whether all answers have ended, and their clients have what was written."""
        return not self.server_state.tasks and not any(
            connection.unsent  # type: ignore[union-attr]  # they are all ours
            for connection in self.server_state.connections
        )

    def _close_idle(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.shutdown()

    async def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        """Wait until something is so, at most so long; not at all once a second signal has come."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not reached() and not self.force_exit and loop.time() < end:  # noqa: ASYNC110 - uvicorn's flags and sets tell nobody
            await asyncio.sleep(_TICK)
