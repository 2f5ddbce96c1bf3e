"""uvicorn with bounds for slow clients and large headers, and a graceful stop that completes or ends every answer."""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from types import FrameType
from typing import Any

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.core.errors import (
    BadRequest,
    ClientError,
    HeadTooLarge,
    NotImplementedHere,
    Overloaded,
    TooSlow,
    WebSocketRefused,
)
from proxy.core.jsontext import dumps
from proxy.exchange import Shutdown

_log = logging.getLogger("spillway.server")

CLIENT_TIMEOUT = 60.0
"""Seconds for a request's headers, for silence in its body, and for a client that does not read its answer."""
HEADER_BYTES = 64 * 1024
"""Of a request's target and headers."""
LINGER = 2.0
"""Seconds that a refused client, which may still be sending, gets to read why."""
SHUTDOWN_GRACE = 1.0
"""Seconds for writing the error events of cancelled answers, and again for closing connections and the application."""
_TICK = 0.05
"""Seconds between two checks while stopping."""
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection with limits, errors as JSON, and offers of other protocols declined."""

    limit_connections: int | None = None
    client_timeout = CLIENT_TIMEOUT
    refused = False
    """Nothing more is read but to be dropped."""
    _deadline: TimerHandle | None = None
    """Ends a request that does not arrive."""
    _unread: TimerHandle | None = None
    """Ends an answer that the client does not read."""
    _header_bytes = 0
    """Received of a request whose headers are incomplete."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._expect_data()
        if self.limit_connections is not None and len(self.connections) > self.limit_connections:
            self.refuse(
                Overloaded(
                    f"All {self.limit_connections} connections are in use: try again later. "
                    "The operator can raise SPILLWAY_MAX_CONNECTIONS."
                )
            )

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self.pipeline.clear()
        self._unset_keepalive_if_required()
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        if self.refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._expect_data()
        self._header_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            refused = error.__context__
            self.refuse(
                refused
                if isinstance(refused, ClientError)
                else BadRequest(f"The request is not valid HTTP/1.1: {error}.")
            )
        else:
            if self._header_bytes > HEADER_BYTES:  # llhttp reports a header once it is complete
                self.refuse(_headers_too_large())

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_data()

    @override
    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        if len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > HEADER_BYTES:
            raise _headers_too_large()
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            self.headers = []  # trailers are appended here: none becomes a header of the request
            self.cycle.keep_alive &= not self.app_state["shutdown"].draining

    @override
    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._header_bytes = 0
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self._deadline is not None and not self.cycle.response_complete:
            self._deadline.cancel()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.client_timeout, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def refuse(self, error: ClientError) -> None:
        """Answer with an error and close the connection; if an answer is under way, only close it."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.abort()
                return
        body = dumps(error.body())
        head = b"connection: close\r\n"
        if error.status == 426:  # RFC 9110, section 15.5.22: it names the protocol to use
            head = b"connection: close, upgrade\r\nupgrade: HTTP/1.1\r\n"
        if error.retry_after is not None:
            head += b"retry-after: %d\r\n" % error.retry_after
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
            % (error.status, len(body), head, body)
        )
        # Closed while the client still sends, the system would reset the connection and lose the answer (RFC 9112, 9.6).
        self.refused = True
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _expect_data(self) -> None:
        """Give the client `client_timeout` seconds until it sends more of its request."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self.client_timeout, self._timed_out)

    def _timed_out(self) -> None:
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete
        if self.flow.read_paused or not (idle or cycle.more_body):  # the client is not what is slow
            self._expect_data()
        elif idle and not self._header_bytes:
            self.transport.close()
        else:
            self.refuse(TooSlow(f"The request stopped arriving for {self.client_timeout:g} seconds."))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read a request that offers another protocol as HTTP/1.1 (RFC 9110, section 7.8), as Java's clients send it.

        llhttp does not parse the body of such a request, so its head is parsed once more without the offer.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(NotImplementedHere("Spillway makes no tunnels; send requests for paths."))
        elif any(name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in self.headers):
            self.refuse(WebSocketRefused("Spillway does not speak WebSocket; use HTTP, streamed or not."))
        else:
            lines = [
                b"%b: %b\r\n" % (name, b"keep-alive" if name == b"connection" else value)
                for name, value in self.headers
                if name not in _UPGRADE_HEADERS
            ]
            self.parser = HttpRequestParser(self)
            self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(lines), rest))


def _headers_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"The request's target and headers exceed {HEADER_BYTES} bytes.")


class Server(uvicorn.Server):
    """Serves until a signal; then waits for running answers, at most `graceful` seconds, and ends the rest with an error.

    It listens until then, so that new requests and readiness probes learn that it is stopping. A second signal ends it at once.
    """

    def __init__(  # noqa: PLR0913 - what the command line and the settings say
        self,
        app: Any,
        *,
        host: str,
        port: int,
        graceful: float,
        keep_alive: float = 75.0,
        max_connections: int | None = None,
        client_timeout: float = CLIENT_TIMEOUT,
        on_started: Callable[[int], None] | None = None,
    ) -> None:
        """Configure uvicorn.

        Args:
            app: the ASGI application.
            host: address to listen on.
            port: to listen on; 0: any free one.
            graceful: seconds that running answers get once a signal came.
            keep_alive: seconds that an idle connection stays open between two requests; longer than proxies and load balancers
                keep theirs (60), or they send a request into one that is just being closed.
            max_connections: accepted at a time; None: any number.
            client_timeout: see `CLIENT_TIMEOUT`.
            on_started: called with the port, once it listens.
        """
        bounds = {"limit_connections": max_connections, "client_timeout": client_timeout}
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=type("Protocol", (BoundedProtocol,), bounds),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,  # the backend's own headers pass
                date_header=False,
                timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # fractions of a second work
            )
        )
        self.state = Shutdown()
        self._graceful = graceful
        self._on_started = on_started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Begin the graceful stop, from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not captured: uvicorn would raise it again at the end, and the exit status be that of a killed process.
        self.force_exit = self.should_exit
        self.stop()

    @override
    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.lifespan.state["shutdown"] = self.state  # copied into the scope of every request
        await super().startup(sockets=sockets)
        if self.started and self._on_started is not None:
            self._on_started(self.port)

    @override
    async def main_loop(self) -> None:
        if not self.should_exit:
            await self._stopped.wait()

    @override
    async def shutdown(self, sockets: Any = None) -> None:
        state, tasks, connections = self.state, self.server_state.tasks, self.server_state.connections
        state.draining = True
        for connection in tuple(connections):
            connection.shutdown()  # closes it if it is idle
        if tasks:
            _log.info("stopping: %d requests get %g s to end", len(tasks), self._graceful)
        await self._until(lambda: not tasks and not _unsent(connections), self._graceful)
        for server in self.servers:
            server.close()
        state.stopping = True
        for task in tuple(tasks):
            task.cancel()
        await self._until(lambda: not tasks, SHUTDOWN_GRACE)
        for connection in tuple(connections):
            connection.shutdown()
        await self._until(lambda: not connections, SHUTDOWN_GRACE)
        for connection in tuple(connections):
            connection.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_GRACE if self.force_exit else None):
                await self.lifespan.shutdown()

    async def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, at most so long; not at all after a second signal."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not reached() and not self.force_exit and loop.time() < end:  # noqa: ASYNC110 - uvicorn's sets notify nobody
            await asyncio.sleep(_TICK)


def _unsent(connections: Iterable[Any]) -> bool:
    """Return whether a client has not yet received all that was written for it."""
    return any(connection.transport.get_write_buffer_size() for connection in connections)
