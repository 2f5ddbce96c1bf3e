"""One client's HTTP request and the means to answer it: ASGI's scope, receive and send as one object."""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from itertools import count
from secrets import token_hex
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope, Send

from proxy.core.errors import BadRequest, BodyTooLarge, ClientError, Forbidden, ShuttingDown
from proxy.core.jsontext import dumps
from proxy.net.headers import AS_JSON, BODILESS, Headers, openai_headers
from proxy.net.tasks import offload_if, spawn

_ID = b"x-request-id"
_VALID_ID = re.compile(rb"[\w.:/+=@~-]{1,128}")
"""A client's request id that cannot break a header, a log line or a table."""
_PROCESS = token_hex(8)
_NUMBERS = count(1)
_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Content-encodings that can be decoded; a request may have one of them."""


class Exchange:
    """A request being answered. Header names are lower case, as ASGI gives them."""

    page: Callable[[], str] = str
    """Returns the URL of Spillway's page, or an empty text if it takes a key, or is not shown to whoever sent the request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.target: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        if self.query:
            self.target += b"?" + self.query
        # llhttp keeps white space at the end, which does not belong to the value (RFC 9110, section 5.5).
        self.headers: list[tuple[bytes, bytes]] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        self._first = dict(reversed(self.headers))
        presented = self._first.get(_ID, b"")
        self.id = presented.decode() if _VALID_ID.fullmatch(presented) else f"req_{unique()}"
        """The client's `x-request-id`, or one made here; every answer carries it."""
        self.version: str = scope.get("http_version", "1.1")
        self.peer: str = (scope.get("client") or ("",))[0]
        """IP address of the connected peer; empty if unknown."""
        self.authorized = False
        self.tenant = ""
        """Digest of the client's credentials: histories of different tenants never meet."""
        self.trusted = False
        """Whether the client has a key, or none is needed."""
        self.status = 0
        """Status of the answer; 0 before it has begun."""
        self.started = self.ended = False
        self.gone = self.delivered = False
        """Whether the client has disconnected, and whether it has the complete answer, after which it may."""
        self.halted = False
        """Whether a viewer of the page stopped the request."""
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[Any] | None = None
        self._more = True
        """Whether there may be more of the body than was read so far."""
        self._beginning = b""
        """Part of the body that was read ahead and will be read again."""
        self._uploaded: asyncio.Event | None = None
        """Set once the body is no longer being read; None unless the body is passed on as an upload."""

    def halt(self) -> bool:
        """Cancel the request on behalf of a viewer; returns False if it is over."""
        if self._task is None or self.ended or self.gone:
            return False
        self.halted = True
        self._task.cancel()
        return True

    def take_cancellation(self) -> ClientError | None:
        """Take back the cancellation of this task, and return the error for its client.

        If the client has left, return None; the task then stays cancelled.
        """
        task = asyncio.current_task()
        if self.gone or task is None:
            return None
        while task.cancelling():
            task.uncancel()
        if self.halted:
            return Forbidden("A viewer of Spillway's page stopped the request.", code="stopped")
        return ShuttingDown("Spillway is being stopped: send the request again once it is back.")

    def detached(self) -> "Exchange":
        """Return a copy for background work after this request, on which nothing can be sent."""
        scope = {"method": self.method, "path": self.path, "headers": self.headers, "http_version": self.version}
        copy = Exchange(scope, _nobody, _nobody)
        copy.tenant, copy.trusted = self.tenant, self.trusted
        return copy

    # -- request

    def speak_openai(self) -> None:
        """Translate the headers of a request in another dialect, and drop its query, which means nothing to a backend."""
        self.headers, self.query = openai_headers(self.headers), b""

    def header(self, name: bytes) -> str | None:
        """Return the value of the first header with this name, or None."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers with this name."""
        return [value for header, value in self.headers if header == name]

    def is_longer_than(self, limit: int) -> bool:
        """Return whether content-length is above `limit` bytes."""
        length = self._first.get(b"content-length")
        return length is not None and length.isdigit() and int(length) > limit

    async def body(self, limit: int) -> bytes:
        """Read the whole body, unless its content-length is above `limit` bytes.

        Raises:
            BodyTooLarge: the body is larger than `limit` bytes.
        """
        if self.is_longer_than(limit):
            raise _too_large(limit)
        body = bytearray()
        async for part in self._parts():
            body += part
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)

    async def decoded(self, body: bytes, limit: int) -> bytes:
        """Undo the body's content-encoding, in a thread.

        Raises:
            BadRequest, BodyTooLarge: see the function of this name.
        """
        if b"content-encoding" not in self._first:
            return body
        return await offload_if(True, decoded, body, self.header(b"content-encoding") or "", limit)

    async def peek(self, least: int, open_: Callable[[bytearray], object] = lambda _: True) -> bytes:
        """Read at least `least` bytes of the body ahead, or all of a shorter body; they will be read again.

        Reading stops early once `open_` returns false for the part received: the client may be waiting for an answer to
        it.
        """
        beginning = bytearray()
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                beginning += part
                if len(beginning) >= least or not open_(beginning):
                    break
        self._beginning = bytes(beginning)
        return self._beginning

    def replace_beginning(self, part: bytes) -> None:
        """Replace what `peek` returned."""
        longer, self._beginning = len(part) - len(self._beginning), part
        self.headers = [
            (name, b"%d" % (int(value) + longer)) if name == b"content-length" else (name, value)
            for name, value in self.headers
        ]

    def upload(self) -> AsyncIterator[bytes]:
        """Return the body as it arrives, to be passed on; reading stops once the answer begins."""
        self._uploaded = asyncio.Event()
        return self._parts()

    async def _parts(self) -> AsyncGenerator[bytes]:
        """Yield the part read ahead, and the rest as it arrives, in pieces that are never empty."""
        part, self._beginning = self._beginning, b""
        while self._more or part:
            if part:
                yield part
                part = b""
                continue
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise asyncio.CancelledError
            self._more, part = message.get("more_body", False), message.get("body", b"")
        if self._uploaded is not None:
            self._uploaded.set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel the code inside if the client disconnects. The body must have been read, or be an `upload`."""
        task = self._task = asyncio.current_task()
        assert task is not None
        watcher = spawn(self._cancel_on_disconnect(task), name="client-watch")
        try:
            yield
        finally:
            watcher.cancel()

    async def _cancel_on_disconnect(self, task: asyncio.Task[Any]) -> None:
        if self._uploaded is not None:
            await self._uploaded.wait()  # until then, the upload notices a disconnect
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # Servers send the same message when the answer is complete (ASGI, "Disconnect - receive event").
        if not (self.ended or self.gone):
            self.gone = True
            task.cancel()

    # -- answer

    async def send(self, message: Message) -> None:
        """Send like ASGI's `send`, also for Starlette: add the request id, and record how much of the answer is sent.

        A backend's own id is passed on as `x-upstream-request-id`.
        """
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            if self._uploaded is not None:
                self._uploaded.set()
            names = {_ID: b"x-upstream-request-id"}
            headers = [(names.get(name, name), value) for name, value in message.get("headers", ())]
            message["headers"] = [*headers, (_ID, self.id.encode())]
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> Awaitable[None]:
        """Write a piece of the body. Not a coroutine itself, because it runs for every chunk."""
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the body."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete answer."""
        if status not in BODILESS and all(name != b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        self.ended = True  # before a disconnect can be noticed
        await self.start(status, headers)
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: ClientError, body: Mapping[str, Any]) -> None:
        """Answer with an error, whose `body` is in the client's dialect."""
        headers = [AS_JSON]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        if error.status == 426:  # RFC 9110, section 15.5.22: the answer names the protocol to use
            headers.append((b"upgrade", b"HTTP/1.1"))
        await self.reply(error.status, headers, dumps(body))


async def _nobody(*_: Message) -> NoReturn:
    raise ConnectionError("nobody is there")


def decoded(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Undo a request's content-encoding, up to `limit` bytes.

    Raises:
        BadRequest: the encoding is unknown, or the data is not in it.
        BodyTooLarge: the result has more than `limit` bytes: a kilobyte of gzip can hold a megabyte.
    """
    encoding = (encoding or "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _ENCODINGS:
        raise BadRequest(f"content-encoding {encoding} is not supported; send identity, gzip or deflate.")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # the format of zlib or gzip, detected by its beginning
    try:
        plain = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"The request body is not valid {encoding}: {error}.") from None
    if len(plain) > limit:
        raise _too_large(limit)
    if not decoder.eof or decoder.unused_data:
        wrong = "data follows its end" if decoder.eof else "it ends too early"
        raise BadRequest(f"The request body is not valid {encoding}: {wrong}.")
    return plain


def _too_large(limit: int) -> BodyTooLarge:
    """Return the error for a request whose body has more than `limit` bytes."""
    return BodyTooLarge(f"The request body is larger than the {limit} bytes accepted here (SPILLWAY_MAX_BODY).")


def unique() -> str:
    """Return hexadecimal text that no other process or call returns, at a hundredth of the cost of a random draw."""
    return f"{_PROCESS}{next(_NUMBERS):x}"
