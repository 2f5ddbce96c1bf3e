"""One client's HTTP request and the way to answer it: ASGI without a framework on the hot path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope, Send

from proxy.errors import ClientError, Forbidden, ShuttingDown
from proxy.net.apart import apart
from proxy.net.headers import AS_JSON
from proxy.net.inflate import body_too_large, decoded
from proxy.net.tasks import spawn
from proxy.wire.headers import Headers, joined
from proxy.wire.jsontext import dumps

_ID = b"x-request-id"
_SANE_ID = re.compile(rb"[\w.:/+=@~-]{1,128}")
"""A request id as clients make them: nothing that could break a header, a log line or a table."""
_PROCESS = token_hex(8)
_NUMBERS = count(1)
_BODILESS = (204, 304)


@dataclass(slots=True)
class Shutdown:
    """How far the server's graceful stop has come; in the state of every request's scope as `shutdown`."""

    draining: bool = False
    """Whether new requests are refused."""
    stopping: bool = False
    """Whether running requests are cancelled."""


class Exchange:
    """A request being answered. Header names are lower case, as ASGI gives them. What is not known of it yet stands in the class."""

    halted = False
    """Whether somebody who looks at it had it end."""
    _task: asyncio.Task[Any] | None = None
    """In which it is served."""
    tenant = ""
    """A digest of whom it came from: histories of different ones never meet."""
    trusted = False
    """Whether it came from somebody who may know all: by a key, or because none is asked for."""
    added: Headers = ()
    """Headers that its answer has, whatever it is."""
    status = 0
    """What the client was answered; 0: nothing yet."""
    started = False
    ended = False
    gone = False
    """Whether the client has left."""
    _begun: tuple[bytes, bool] | None = None
    """A piece of the body that was looked at, and whether there are more."""
    _uploaded: asyncio.Event | None = None
    """Set once nobody takes the body any more; None: it is not passed on while it arrives."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.target: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        if self.query:
            self.target += b"?" + self.query
        self.headers: list[tuple[bytes, bytes]] = [*map(tuple, scope["headers"])]  # some servers' are lists
        self._first = dict(reversed(self.headers))
        self.id = _id_in(self._first.get(_ID))
        """The client's own `x-request-id` if it sent a sane one, else one of ours; every answer carries it."""
        self.version: str = scope.get("http_version", "1.1")
        self._receive = receive
        self._send = send
        self._shutdown: Shutdown = scope.get("state", {}).get("shutdown") or Shutdown()

    @property
    def draining(self) -> bool:
        """Whether the server is being stopped."""
        return self._shutdown.draining

    def admit(self) -> None:
        """Let the request in.

        Raises:
            ShuttingDown: nothing new is begun.
        """
        if self._shutdown.draining:
            raise ShuttingDown("The server is being stopped; send the request to whatever takes its place.")
        self._task = asyncio.current_task()

    def halt(self) -> bool:
        """Have what is done for it end now, for somebody who looks at it; False: it is over."""
        if self._task is None or self.ended or self.gone:
            return False
        self.halted = True
        self._task.cancel()
        return True

    def stopped(self) -> ClientError | None:
        """What to tell the client of a request that was cancelled, if it was because the server stops, or somebody halted it.

        The task is no longer cancelled then, so that it can be told.
        """
        task = asyncio.current_task()
        if self.gone or not (self._shutdown.stopping or self.halted) or task is None:
            return None
        while task.cancelling():
            task.uncancel()
        if self.halted:
            return Forbidden("Somebody who looks at this Spillway stopped the request.", code="stopped")
        return ShuttingDown(
            "The server is being stopped; send the request again, to whatever takes its place."
        )

    def who(self) -> dict[str, Any]:
        """Who asked, and with which headers."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "http_version": self.version,
            "spillway.tenant": (self.tenant, self.trusted),
        }

    def apart(self) -> Exchange:
        """The same for what is done when this one is over; nobody can be answered on it."""
        return Exchange.of(self.who())

    @classmethod
    def of(cls, who: Mapping[str, Any]) -> Exchange:
        """An exchange of whoever asked once; nobody can be answered on it."""
        apart = cls(dict(who), _nobody, _nobody)
        apart.tenant, apart.trusted = who["spillway.tenant"]
        return apart

    def header(self, name: bytes) -> str | None:
        """The first header of that name."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def by_name(self) -> Mapping[bytes, bytes]:
        """The headers by name; two of one name are a list (RFC 9110, section 5.3), which is no host and no origin."""
        return self._first if len(self._first) == len(self.headers) else joined(self.headers)

    @property
    def trace(self) -> tuple[str, str] | None:
        """`traceparent` and `tracestate` (W3C Trace Context); None: the client sent none."""
        if b"traceparent" not in self._first:
            return None
        return self.header(b"traceparent") or "", self.header(b"tracestate") or ""

    async def body(self, limit: int) -> bytes:
        """Read the whole body, at most `limit` bytes; of one with a larger content-length, nothing.

        Raises:
            BodyTooLarge: it is larger.
        """
        if self.tells_more_than(limit):
            raise body_too_large(limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            part, more = await self._part(size, limit)
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def tells_more_than(self, limit: int) -> bool:
        """Whether the client tells a length above so many bytes."""
        length = self._first.get(b"content-length")
        return length is not None and length.isdigit() and int(length) > limit

    def again(self, body: bytes) -> None:
        """Have a body that was read be read once more."""
        self._begun = (body, False)

    async def decoded(self, body: bytes, limit: int) -> bytes:
        """Undo the body's content-encoding, in a thread.

        Raises:
            BadRequest, BodyTooLarge: see the function of this name.
        """
        if b"content-encoding" not in self._first:
            return body
        return await apart(True, decoded, body, self.header(b"content-encoding") or "", limit)

    async def body_stream(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            BodyTooLarge: more than `limit` bytes came.
        """
        size, more = 0, True
        while more:
            part, more = await self._part(size, limit)
            size += len(part)
            if part:
                yield part

    async def peek(self, least: int, open_: Callable[[bytes], object] = lambda _: True) -> bytes:
        """The beginning of the body, which stays part of it: `least` bytes, or more, or all there are.

        Less, if what has come is not `open_` to be what is looked for: the client may wait for an answer to it.
        """
        part, more = b"", True
        while more and len(part) < least and open_(part):
            piece, more = await self._part(0, None)
            part += piece
        self._begun = (part, more)
        return part

    def begin(self, part: bytes, longer: int) -> None:
        """Have the body begin with this instead of what `peek` saw; it is `longer` by so many bytes then."""
        assert self._begun is not None
        self._begun = (part, self._begun[1])
        self.headers = [
            (name, b"%d" % (int(value) + longer)) if name == b"content-length" else (name, value)
            for name, value in self.headers
        ]

    def upload(self) -> AsyncIterator[bytes]:
        """The body as it arrives, to be passed on: nobody takes more of it once the answer begins."""
        self._uploaded = asyncio.Event()
        return self._upload(self._uploaded)

    async def _upload(self, uploaded: asyncio.Event) -> AsyncIterator[bytes]:
        async for part in self.body_stream():
            yield part
        uploaded.set()

    async def _part(self, size: int, limit: int | None) -> tuple[bytes, bool]:
        """The next piece of the body, after so many bytes of it, and whether there are more."""
        if self._begun is not None:
            (part, more), self._begun = self._begun, None
        else:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise asyncio.CancelledError
            part, more = message.get("body", b""), message.get("more_body", False)
        if limit is not None and size + len(part) > limit:
            raise body_too_large(limit)
        return part, more

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel what runs inside when the client leaves. The body must have been read, or be an `upload`."""
        task = self._task or asyncio.current_task()
        assert task is not None
        watcher = spawn(self._wait(task), name="client-watch")
        try:
            yield
        finally:
            watcher.cancel()

    async def _wait(self, task: asyncio.Task[Any]) -> None:
        """As ASGI has it: whoever wants to see the client leave has to take what else it sends."""
        if self._uploaded is not None:
            await self._uploaded.wait()  # until then it is the upload that sees the client leave
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left(task)

    def _left(self, task: asyncio.Task[Any]) -> None:
        # Servers say the same when the answer is complete (ASGI, "Disconnect - receive event").
        if not (self.ended or self.gone):
            self.gone = True
            task.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers, and the request's id: a backend's own goes on as `x-upstream-request-id`."""
        told = self._told(status, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    def _told(self, status: int, headers: Headers) -> Headers:
        """The answer begins: the headers that it is sent with."""
        self.started = True
        self.status = status
        if self._uploaded is not None:
            self._uploaded.set()
        if _ID in dict(headers):
            headers = [(b"x-upstream-request-id" if name == _ID else name, value) for name, value in headers]
        return [*headers, *self.added, (_ID, self.id.encode())]

    def write(self, data: bytes) -> Awaitable[None]:
        """Send a piece of the body. No coroutine of its own: this runs for every chunk."""
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer at once."""
        self.ended = True
        if status not in _BODILESS and all(name != b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        await self.start(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: ClientError, told: Mapping[str, Any]) -> None:
        """Answer with an error, told in the words of the client's dialect."""
        body = dumps(told)
        headers = [AS_JSON]
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
        await self.reply(error.status, headers, body)


async def _nobody(*_: Message) -> NoReturn:
    raise ConnectionError("nobody is there")


def _id_in(given: bytes | None) -> str:
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode()
    return f"req_{unique()}"


def unique() -> str:
    """Hexadecimal, and like no other's: what this process drew once, and a number, at a hundredth of the cost of a draw."""
    return f"{_PROCESS}{next(_NUMBERS):x}"
