"""One client's connection: takes its requests, within bounds, hands them to the application, and ends in good order."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from enum import Enum, auto
from math import inf
from typing import Any

from typing_extensions import override
from uvicorn import Config
from uvicorn.server import ServerState

from proxy.asgi import Scope
from proxy.errors import BadRequest, ClientError, TooSlow
from proxy.net.sockets import hung_up
from proxy.net.tasks import spawn
from proxy.server.cycle import Cycle
from proxy.server.guard import Guard
from proxy.server.limits import JOINED, LEAST_RATE, LINGER, LINGER_SILENCE, PIPELINED, STEP, UNSENT
from proxy.server.parsing import Parsing
from proxy.wire.jsontext import dumps

_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS
_RESET = struct.pack("ii", 1, 0)


class Phase(Enum):
    """What is read."""

    IDLE = auto()
    """Nothing: no request has begun."""
    HEAD = auto()
    BODY = auto()
    ANSWERING = auto()
    """A whole request, which is being answered."""
    DEAF = auto()
    """Nothing that would be looked at: the connection ends with the answer that is under way."""
    LEAVING = auto()
    """The same after the last answer, until the client has seen it."""


_DONE = (Phase.DEAF, Phase.LEAVING)
"""When what still comes is dropped."""


class ClientConnection(asyncio.Protocol):
    """A connection of a client; uvicorn's server makes it and asks it to `shutdown`."""

    def __init__(
        self,
        guard: Guard,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.write_paused = False
        self._guard = guard
        self._app = config.loaded_app
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._base: dict[str, Any] = {}
        """What the scopes of all requests have in common."""
        self._phase = Phase.IDLE
        self._since = self._heard = 0.0
        """When the phase began, and when something came last: seconds of the loop's clock."""
        self._parsing = Parsing(self, guard.limits.head)
        self._cycle: Cycle | None = None
        self._reading: Cycle | None = None
        self._pipeline: deque[Cycle] = deque()
        self._read_paused = False
        self._paused_at = 0.0
        self._writable = asyncio.Event()
        self._held = b""
        """What was put, while more may follow in the same step of the loop."""
        self._written = self._taken = 0
        """Bytes written so far, and those of them that had left when the client was last seen to read."""
        self._taken_at = 0.0

    @property
    def draining(self) -> bool:
        """Whether the server is being stopped."""
        return self._guard.intake.draining

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken yet, but for what the system holds."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # -- asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, as create_server makes
        self._since = self._heard = self._taken_at = self._loop.time()
        self._state.connections.add(self)  # type: ignore[arg-type]  # as good as one of uvicorn's own
        sock = transport.get_extra_info("socket")
        if _NOTSENT_LOWAT is not None and sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT)
        client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._base = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "root_path": "",
            "spillway.intake": self._guard.intake,
            "client": client[:2] if client else None,
            "server": server[:2] if server else None,
        }
        refused = self._guard.admit(self, client[0] if client else "")
        if refused is None:
            return
        if self._guard.tells:
            self._enter(Phase.HEAD)
            self._refuse(refused)
        else:
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._guard.gone(self)
        self._guard.intake.passed += self._written
        self._phase = Phase.LEAVING
        for cycle in (self._cycle, self._reading, *self._pipeline):
            if cycle is not None:
                cycle.disconnect()
        self._pipeline.clear()
        self._writable.set()
        self._parsing.close()

    @override
    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._phase in _DONE:
            return
        try:
            self._parsing.feed(data)
        except ClientError as error:
            self._refuse(error)

    @override
    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    # -- what is read

    def begun(self) -> None:
        """A request begins."""
        self._phase, self._since = Phase.HEAD, self._heard

    def requested(self, told: Scope, *, keep_alive: bool, expects: bool) -> None:
        """The head is whole: the application may begin.

        Raises:
            BadRequest: too many wait already.
        """
        scope = {**self._base, **told, "state": self._app_state.copy()}
        cycle = Cycle(self, scope, keep_alive=keep_alive, expects=expects)
        self._phase, self._since = Phase.BODY, self._heard
        self._reading = cycle
        if self._cycle is None or self._cycle.complete:
            self._start(cycle)
            return
        if len(self._pipeline) >= PIPELINED:
            raise BadRequest(f"More than {PIPELINED} requests wait on this connection; use more connections.")
        self.pause_reading()
        self._pipeline.append(cycle)

    def body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._reading is not None:
            self._reading.feed(data)

    def whole(self) -> None:
        """The request is whole."""
        if self._reading is not None:
            self._reading.whole()
            self._phase, self._since = Phase.ANSWERING, self._heard

    # -- the cycle's line

    def put(self, data: bytes) -> None:
        """Send, in one with what follows in the same step of the loop: each sending costs, and wakes the client."""
        held = self._held
        if len(held) + len(data) > JOINED:
            self.write(data)
            return
        if not held:
            self._loop.call_soon(self._flush)
        self._held = held + data

    def write(self, data: bytes) -> None:
        """Send, or buffer, behind what was put."""
        assert self._transport is not None
        if held := self._held:
            self._held = b""
            if len(held) + len(data) <= JOINED:
                data = held + data
            else:
                self.write(held)
        if data:
            self._written += len(data)
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has read, or is gone."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Take no more from the client."""
        if not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._paused_at = self._loop.time()
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on taking, unless requests wait already."""
        if not self._read_paused or self._pipeline or self._transport is None or self._transport.is_closing():
            return
        self._read_paused = False
        now = self._heard = self._loop.time()
        self._since = min(now, self._since + now - self._paused_at)
        self._transport.resume_reading()

    def answered(self) -> None:
        """The answer is complete: the next one may begin, or the connection ends."""
        cycle, transport = self._cycle, self._transport
        assert cycle is not None
        assert transport is not None
        if transport.is_closing():
            return
        if not cycle.keep_alive:
            self._leave()
            return
        if self._pipeline:
            self._start(self._pipeline.popleft())
        elif self._phase is Phase.ANSWERING:
            self._enter(Phase.IDLE)
        self.resume_reading()

    def cut_off(self, *, at_once: bool) -> None:
        """End a connection whose answer can't be completed."""
        self._end(at_once=at_once)

    # -- for the server and the guard

    def shutdown(self) -> None:
        """The server is being stopped: end what is idle; what runs ends with its answer, what is new gets one."""
        if self._phase is Phase.IDLE and self._cycle is not None:
            self._end(at_once=False)

    def abort(self) -> None:
        """End it, whatever it is doing."""
        self._end(at_once=True)

    def check(self, now: float) -> None:
        """End what took too long; `now` in seconds of the loop's clock."""
        limits = self._guard.limits
        waiting = self.unsent
        if self._stuck(now, waiting):
            self._end(at_once=True)
            return
        since, silent = now - self._since, now - self._heard
        if self._read_paused:  # it is we who do not read, and are not told that it has left
            if self._phase is Phase.BODY and not self._pipeline and self._hung_up():
                self._end(at_once=True)
            return
        if self._phase is Phase.HEAD and since > limits.timeout:
            self._refuse(TooSlow(f"The request's headers did not arrive within {limits.timeout:g} seconds."))
        elif self._phase is Phase.BODY and self._reading is not None:
            granted = limits.timeout + self._reading.received / LEAST_RATE
            if silent > limits.timeout or since > granted:
                self._refuse(TooSlow(f"The request's body stopped arriving for {limits.timeout:g} seconds."))
        elif self._phase is Phase.IDLE and since > (limits.keep_alive if self._cycle else limits.timeout):
            self._end(at_once=False)
        elif self._phase is Phase.LEAVING and waiting:
            self._since = self._heard = now  # it is still reading its answer
        elif self._phase is Phase.LEAVING and (silent > LINGER_SILENCE or since > LINGER):
            self._end(at_once=True)

    @property
    def arriving(self) -> float:
        """When the body began to arrive that still does, in seconds of the loop's clock; `inf`: there is none."""
        return self._since if self._phase is Phase.BODY and not self._read_paused else inf

    def give_up(self) -> None:
        """End a request whose body is still arriving, and tell why."""
        self._refuse(TooSlow("The request's body took too long to arrive while others wait for its room."))

    def _hung_up(self) -> bool:
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        return sock is not None and hung_up(sock.fileno())

    def _stuck(self, now: float, waiting: int) -> bool:
        """Whether the client has not read for too long, while there was something to be read."""
        taken = self._written - waiting
        if not waiting or taken >= self._taken + STEP:
            self._taken, self._taken_at = taken, now
        return now - self._taken_at > self._guard.limits.timeout

    # -- inside

    def _flush(self) -> None:
        if self._held and self._transport is not None and not self._transport.is_closing():
            self.write(b"")

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since = self._loop.time()

    def _start(self, cycle: Cycle) -> None:
        self._cycle = cycle
        task = spawn(cycle.run(self._app), name="request")
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _refuse(self, error: ClientError) -> None:
        """Tell what is wrong with what was sent, and end the connection; after the answer that is under way."""
        cycle = self._cycle
        if cycle is not None and not cycle.complete:
            if self._phase is not Phase.BODY or self._pipeline:
                self._pipeline.clear()
                cycle.keep_alive = False
                self._enter(Phase.DEAF)
                return
            cycle.disconnect()
            if cycle.started:
                self._end(at_once=True)
                return
        body = dumps(error.body())
        retry = b"" if error.retry_after is None else b"retry-after: %d\r\n" % error.retry_after
        # RFC 9110, section 15.5.22: with 426 the protocol is told in which to ask.
        named = (
            b"connection: close, upgrade\r\nupgrade: HTTP/1.1"
            if error.status == 426
            else b"connection: close"
        )
        self.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b%b\r\n\r\n%b"
            % (error.status, len(body), retry, named, body)
        )
        self._leave()

    def _leave(self) -> None:
        """Close once the client has what was written: as long as it still sends, that is read and dropped."""
        transport = self._transport
        assert transport is not None
        whole = self._phase is Phase.ANSWERING and not self._pipeline
        self._pipeline.clear()
        self._enter(Phase.LEAVING)
        self._heard = self._since
        self._flush()
        if whole or transport.is_closing():
            transport.close()
            return
        self.resume_reading()
        transport.write_eof()

    def _end(self, *, at_once: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        self._flush()
        if not at_once:
            transport.close()
            return
        # With a reset: the system need not keep what was not read, and the end of an answer is not taken for a whole one.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()
