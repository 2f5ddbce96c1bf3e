"""uvicorn with bounds for slow clients and large headers, and a graceful stop that completes or ends every answer."""

import asyncio
import signal
import threading
from asyncio import TimerHandle
from collections.abc import Callable
from itertools import chain
from types import FrameType
from typing import Any

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.core.errors import BadRequest, ClientError, HeadTooLarge, Overloaded, TooSlow
from proxy.core.jsontext import dumps

CLIENT_TIMEOUT = 60.0
"""Seconds for a request's headers, for silence in its body, and for a client that does not read its answer."""
HEADER_BYTES = 64 * 1024
"""Most bytes of a request's target and headers."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open between two requests. Longer than proxies and load balancers keep theirs (60):
otherwise they send a request on a connection that is just being closed."""
LINGER = 2.0
"""Seconds in which a refused client, which may still be sending, can read the reason."""
# At the limit, /healthz used to answer 503, and Kubernetes restarted pods that were only busy.
HEALTH = (b"/healthz", b"/readyz")
"""Paths that are served even beyond the limit of connections; otherwise an orchestrator would restart a server that is
only busy."""
HEALTH_CONNECTIONS = 16
"""Connections accepted for these paths beyond the limit."""
SHUTDOWN_GRACE = 1.0
"""Seconds for writing the error events of cancelled answers."""
_TICK = 0.05
"""Seconds between two checks while stopping."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection with limits, errors as JSON, and offers of other protocols declined."""

    # A subclass of uvicorn's protocol instead of a server of our own, which took 1,270 lines and was slower: 125
    # instead of 95 to 112 µs per request. Bounds per address are left to nginx or Caddy.
    limit_connections: int | None = None
    client_timeout = CLIENT_TIMEOUT
    _refused = False
    """Whether the request was refused, so that everything still received is discarded."""
    _is_beyond = False
    """Whether the connection is beyond the limit."""
    _timer: TimerHandle
    """Timer that ends a request that does not arrive, or an answer that the client does not read."""
    _head_bytes = 0
    """Bytes received of incomplete headers, trailers or chunk sizes."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.client_timeout, self._timed_out)
        beyond = 0 if self.limit_connections is None else len(self.connections) - self.limit_connections
        self._is_beyond = beyond > 0
        if beyond > HEALTH_CONNECTIONS:
            self._refuse(self._overloaded())

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"All {self.limit_connections} connections are in use: try again later. "
            "The operator can raise SPILLWAY_MAX_CONNECTIONS."
        )

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if not self.flow.write_paused:
            self._restart_timer()
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            known = error.__context__
            invalid = BadRequest(f"The request is not valid HTTP/1.1: {error}.")
            self._refuse(known if isinstance(known, ClientError) else invalid)
        else:
            if self._head_bytes > HEADER_BYTES:  # llhttp reports a header once it is complete
                self._refuse(_head_too_large())

    @override
    def _should_upgrade(self) -> bool:
        return True  # to nothing, so uvicorn starts no task

    @override
    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        if len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > HEADER_BYTES:
            raise _head_too_large()
        if self._is_beyond and self.url.partition(b"?")[0] not in HEALTH:
            raise self._overloaded()
        super().on_headers_complete()
        self.headers = []  # trailers are appended here; none may become a header of the request

    @override
    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._restart_timer()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._restart_timer()

    def _restart_timer(self) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(self.client_timeout, self._timed_out)

    def _timed_out(self) -> None:
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete
        if self.flow.write_paused:
            self.transport.abort()
        elif self._head_bytes or (not idle and cycle.more_body and not self.flow.read_paused):
            self._refuse(TooSlow(f"The request stopped arriving for {self.client_timeout:g} seconds: send it again."))
        elif idle and self.timeout_keep_alive_task is None:
            self.transport.close()
        else:  # the client is not the slow side
            self._restart_timer()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read plain HTTP/1.1 in spite of an offer such as HTTP/2 by Java's clients (RFC 9110, section 7.8).

        llhttp does not parse the body of such a request, so its head is parsed once more without the offer.
        """
        if self.scope["method"] == "CONNECT":
            self._refuse(BadRequest("Spillway opens no tunnels: send requests for paths."))
            return
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self.scope["headers"] if name != b"connection"]
        self.parser = HttpRequestParser(self)
        head = f"{self.scope['method']} ".encode() + self.url + b" HTTP/1.1\r\n"
        self.data_received(b"%b%b\r\n%b" % (head, b"".join(lines), rest))

    def _refuse(self, error: ClientError) -> None:
        """Answer with an error and close the connection; if an answer has begun, only close it."""
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.abort()
                return
        body = dumps(error.body())
        retry = b"" if error.retry_after is None else b"retry-after: %d\r\n" % error.retry_after
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n%b"
            % (error.status, len(body), retry, body)
        )
        # If the socket were closed while the client still sends, the system would reset the connection and lose the answer
        # (RFC 9112, 9.6).
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"The request's target and headers exceed {HEADER_BYTES} bytes.")


class Server(uvicorn.Server):
    """Serves until a signal; then waits for running answers, at most `graceful` seconds, and ends the rest with an error.

    A second signal ends it at once. Requests have it as `server` in their state.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        graceful: float,
        max_connections: int | None = None,
        client_timeout: float = CLIENT_TIMEOUT,
        on_started: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> None:
        """Configure uvicorn, with more `options` of its own.

        `port` 0 picks a free port. Once the server listens, `on_started` is called with its port, or with 0 for a
        socket in the file system.
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
                server_header=False,  # so that the backend's own headers are passed on
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                **options,
            )
        )
        self._graceful = graceful
        self._on_started = on_started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Begin the graceful stop, from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Signals are not captured: uvicorn would raise them again at the end, and the exit status would be that of a
        # killed process.
        self.force_exit = self.should_exit
        self.stop()

    @override
    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.lifespan.state["server"] = self  # copied into the scope of every request
        is_main = threading.current_thread() is threading.main_thread()
        # Not on Windows, nor under nohup, where a closed terminal kills nothing.
        if is_main and hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self.handle_exit)  # uvicorn handles the others
        await super().startup(sockets=sockets)
        self._on_started(0 if self.config.uds else self.servers[0].sockets[0].getsockname()[1])

    @override
    async def main_loop(self) -> None:
        if not self.should_exit:
            await self._stopped.wait()

    @override
    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()  # closes the connection once it is idle
        await self._until_closed(self._graceful)
        for task in tuple(self.server_state.tasks):
            task.cancel()
        await self._until_closed(SHUTDOWN_GRACE)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        await self.lifespan.shutdown()

    async def _until_closed(self, seconds: float) -> None:
        """Wait until all connections are closed, up to a time limit, and not at all after a second signal."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.server_state.connections and not self.force_exit and loop.time() < end:  # noqa: ASYNC110 - uvicorn's set notifies nobody
            await asyncio.sleep(_TICK)
