"""One request and its answer, between a connection and the application: ASGI's side of HTTP/1.1."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from itertools import chain
from typing import Any, Protocol

from proxy.asgi import AsgiMessage, Receive, Scope, SendMessage
from proxy.errors import InternalError, SpillwayError
from proxy.net.headers import AS_JSON
from proxy.server.limits import BODY_BUFFER, JOINED
from proxy.wire.headers import Headers
from proxy.wire.jsontext import dumps

BODILESS = frozenset({204, 304})
"""Statuses of responses without a body, whatever their headers say (RFC 9110, section 6.4.1)."""
_log = logging.getLogger("spillway.server")

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_OURS = frozenset({b"connection", b"transfer-encoding"})
"""Headers that are written here."""
_DISCONNECT: AsgiMessage = {"type": "http.disconnect"}


class Line(Protocol):
    """The connection, as a cycle uses it."""

    write_paused: bool
    """Whether the client has more to read than is buffered for it."""

    @property
    def draining(self) -> bool:
        """Whether connections are to end with the answer."""
        ...

    def put(self, data: bytes) -> None:
        """Send, in one with what follows at once."""
        ...

    def write(self, data: bytes) -> None:
        """Send, or buffer, behind what was put."""
        ...

    async def drained(self) -> None:
        """Wait until the client has read, or is gone."""
        ...

    def pause_reading(self) -> None:
        """Take no more from the client."""
        ...

    def resume_reading(self) -> None:
        """Go on taking."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...

    def cut_off(self, *, at_once: bool) -> None:
        """End a connection whose answer can't be completed; `at_once`: so that its end is seen to be none."""
        ...


class Cycle:
    """A request that is being read, or answered, or both. What has not happened to it yet stands in the class."""

    started = False
    """Whether the head of the answer is out."""
    complete = False
    """Whether the whole answer is."""
    read = False
    """Whether the whole request is in."""
    received = 0
    """Bytes of the request's body so far."""
    _taken = 0
    """Those of them that the application has."""
    _told = False
    """Whether it knows that there are no more."""
    _stirred: asyncio.Event | None = None
    """Set when something has happened; None: nobody has waited for it yet."""
    _disconnected = False
    _chunked = _bodiless = False
    _left: int | None = None
    """Bytes of the answer that its length still promises."""
    _when_gone: Callable[[], None] | None = None

    def __init__(self, line: Line, scope: Scope, *, keep_alive: bool, expects: bool) -> None:
        """Make it.

        Args:
            line: the connection.
            scope: what ASGI tells of the request.
            keep_alive: whether the client would use the connection again.
            expects: whether it waits for `100 Continue` before it sends the body.
        """
        self.scope = scope
        self.keep_alive = keep_alive
        self._line = line
        self._expects = expects
        self._pieces: list[bytes] = []
        scope["spillway.client"] = self

    # -- the connection's side

    def feed(self, data: bytes) -> None:
        """Take a piece of the body; what comes after the answer is dropped."""
        self.received += len(data)
        if self.complete or self._disconnected:
            return
        self._pieces.append(data)
        if self.received - self._taken > BODY_BUFFER:
            self._line.pause_reading()
        if self._stirred is not None:
            self._stirred.set()

    def whole(self) -> None:
        """The body has ended."""
        self.read = True
        if self._stirred is not None:
            self._stirred.set()

    def disconnect(self) -> None:
        """The client is gone, or given up: whatever the application still sends goes nowhere."""
        self._disconnected = not self.complete
        self._pieces.clear()
        if self._stirred is not None:
            self._stirred.set()
        if self._disconnected and self._when_gone is not None:
            self._when_gone()

    # -- the application's side

    async def run(self, app: Any) -> None:
        """Have the application answer, and end the connection if it can't."""
        receive: Receive = self.receive
        send: SendMessage = self.send
        try:
            await app(self.scope, receive, send)
        except asyncio.CancelledError:
            self._line.cut_off(at_once=True)
            raise
        except SpillwayError:  # told by whoever raised it; what is left is to end the connection
            pass
        except Exception:  # noqa: BLE001 - the last boundary: there is nobody above
            _log.exception("a request failed")
        if self.complete or self._disconnected:
            return
        if self.started:
            # The end of a body without length or chunks is the end of the connection: only a reset tells it from one.
            self._line.cut_off(at_once=not (self._chunked or self._left))
        else:
            body = dumps(InternalError("Spillway failed on this request; its log says more.").body())
            head = [AS_JSON, (b"content-length", b"%d" % len(body))]
            await self.send({"type": "http.response.start", "status": 500, "headers": head})
            await self.send({"type": "http.response.body", "body": body})

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call this when the client leaves before it has its answer; None: nothing any more. The body must be in, or be taken.

        What ASGI has instead is a task that waits in `receive`, for each request.
        """
        self._when_gone = call
        if call is None or self.complete:
            return
        if self._disconnected:
            call()
        else:
            self._line.resume_reading()  # else nobody sees it leave

    def rest(self) -> bytes | None:
        """What is left of the body, if all of it is here and nobody waits to be asked for it; else None."""
        if self._expects or self._disconnected or not self.read or self._told:
            return None
        return self._take()

    async def receive(self) -> AsgiMessage:
        """ASGI's `receive`: what has arrived of the body, once there is something."""
        if self._expects and not self._disconnected:
            self._expects = False
            self._line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._disconnected and not self.complete:
            self._line.resume_reading()
            if self._pieces or (self.read and not self._told):
                return {"type": "http.request", "body": self._take(), "more_body": not self._told}
            if self._stirred is None:
                self._stirred = asyncio.Event()
            await self._stirred.wait()
            self._stirred.clear()
        return _DISCONNECT

    def _take(self) -> bytes:
        self._taken, self._told = self.received, self.read
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    async def send(self, message: AsgiMessage) -> None:
        """ASGI's `send`; waits while the client does not read.

        Raises:
            RuntimeError: what was sent is no answer.
        """
        line = self._line
        if line.write_paused and not self._disconnected:
            await line.drained()
        if self._disconnected:
            return
        if not self.started:
            head = self._head(message["status"], message["headers"])
            self.started = True
            line.put(head)
            return
        if self.complete:
            raise RuntimeError("more was sent after the answer was complete")
        if data := self._framed(message.get("body", b"")):
            line.put(data)
        if not message.get("more_body", False):
            self._end(b"", b"")

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole answer; waits while the client does not read.

        Raises:
            RuntimeError: it is none.
        """
        line = self._line
        if line.write_paused and not self._disconnected:
            await line.drained()
        if not self._disconnected:
            self._end(self._head(status, headers), self._framed(body))

    def _end(self, head: bytes, data: bytes) -> None:
        """Send the last of the answer."""
        if self._left:
            raise RuntimeError(f"the answer ended {self._left} bytes short of its length")
        self.started = self.complete = True
        if self._stirred is not None:
            self._stirred.set()
        line = self._line
        if len(data) > JOINED:
            line.write(head)
            head = b""
        line.write(head + data + b"0\r\n\r\n" if self._chunked else head + data)
        line.answered()

    def _head(self, status: int, headers: Headers) -> bytes:
        if not 200 <= status <= 999:
            raise RuntimeError(f"{status} is no status of an answer")
        self._expects = False
        names, values = zip(*headers, strict=True) if headers else ((), ())
        named = dict(zip(map(bytes.lower, names), values, strict=True))
        if (length := named.get(b"content-length")) is not None:
            self._left = int(length)
        if not _OURS.isdisjoint(named):
            headers = [pair for pair in headers if self._passes(*pair)]
        number = len(headers)
        lines = b"%b: %b\r\n" * number % tuple(chain.from_iterable(headers))
        if not lines.count(b"\n") == lines.count(b"\r") == number or b"\0" in lines:
            raise RuntimeError("a header of the answer has a line break in it")
        line = _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return b"%b%b%b\r\n" % (line, lines, self._framing(status))

    def _passes(self, name: bytes, value: bytes) -> bool:
        """Whether a header goes out as it is: how the answer is framed, and what becomes of the connection, is told here."""
        if name.lower() == b"connection":
            self.keep_alive = self.keep_alive and b"close" not in value.lower()
        return name.lower() not in _OURS

    def _framing(self, status: int) -> bytes:
        """How the end of the body is told (RFC 9112, section 6.3), and what becomes of the connection: header lines."""
        old = self.scope["http_version"] == "1.0"
        told = b""
        if status in BODILESS or self.scope["method"] == "HEAD":
            self._bodiless, self._left = True, None
        elif self._left is None:
            self._chunked = not old
            self.keep_alive = self.keep_alive and not old
            if self._chunked:
                told = b"transfer-encoding: chunked\r\n"
        # What the client is still sending is read to be dropped, not to find the next request behind it.
        self.keep_alive = self.keep_alive and self.read and not self._line.draining
        if not self.keep_alive:
            return told + b"connection: close\r\n"
        return told + b"connection: keep-alive\r\n" if old else told

    def _framed(self, body: bytes) -> bytes:
        """A piece of the body as it goes out."""
        if not body or self._bodiless:
            return b""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(body), body)
        if self._left is not None:
            if len(body) > self._left:
                raise RuntimeError("the answer is longer than its length")
            self._left -= len(body)
        return body
