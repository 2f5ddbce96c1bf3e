"""One client's HTTP request and the way to answer it: ASGI without a framework on the hot path."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex
from typing import Any, TypeAlias

from proxy.errors import BadRequest, BodyTooLarge, ClientError
from proxy.net.tasks import spawn
from proxy.wire.jsontext import dumps

Scope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
SendMessage: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


_SANE_ID = re.compile(rb"[\w.:/+=@~-]{1,128}")
"""A request id as clients make them: nothing that could break a header, a log line or a table."""
_MINE = f"req_{token_hex(5)}"
"""Ours are this and a number: different in every process, and a hundredth of the cost of a random one each."""
_NUMBERS = count(1)

_MEMBERS = 64
"""Members of a gzip body that are read; each of them may be as short as 20 bytes."""


class Exchange:
    """A request being answered. Header names are lower case, as ASGI gives them."""

    def __init__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.target: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        if self.query:
            self.target += b"?" + self.query
        self.headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.id = _id_in(self.headers)
        """The client's own `x-request-id` if it sent a sane one, else one of ours; every answer carries it."""
        self.version: str = scope.get("http_version", "1.1")
        self.tenant = ""
        """A digest of whom it came from: histories of different ones never meet."""
        self.trusted = False
        """Whether it came from somebody who may know all: by a key, or because none is asked for."""
        self.added: Headers = ()
        """Headers that its answer has, whatever it is."""
        self.status = 0
        """What the client was answered; 0: nothing yet."""
        self.started = False
        self.ended = False
        self.gone = False
        """Whether the client has left."""
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """The first header of that name."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    async def body(self, limit: int) -> bytes:
        """Read the whole body, at most `limit` bytes.

        Raises:
            BodyTooLarge: it is larger.
        """
        parts = [part async for part in self.body_stream(limit)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def body_stream(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            BodyTooLarge: more than `limit` bytes came.
        """
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise asyncio.CancelledError
            more = message.get("more_body", False)
            if part := message.get("body", b""):
                size += len(part)
                if limit is not None and size > limit:
                    raise BodyTooLarge(f"The request body is larger than the {limit} bytes accepted here.")
                yield part

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel what runs inside when the client leaves. The body must have been read."""
        task = asyncio.current_task()
        assert task is not None
        watcher = spawn(self._watch(task), name="client-watch")
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # Servers say the same when the answer is complete (ASGI, "Disconnect - receive event").
        if not self.ended:
            self.gone = True
            task.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers, and the request's id: a backend's own goes on as `x-upstream-request-id`."""
        self.started = True
        self.status = status
        told = [*headers, *self.added]
        for index, (name, value) in enumerate(told):
            if name == b"x-request-id":
                told[index] = (b"x-upstream-request-id", value)
        told.append((b"x-request-id", self.id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": told})

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
        await self.start(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: ClientError, told: Mapping[str, Any]) -> None:
        """Answer with an error, told in the words of the client's dialect."""
        body = dumps(told)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.reply(error.status, headers, body)


def _id_in(headers: Headers) -> str:
    for name, value in headers:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return value.decode()
    return f"{_MINE}{next(_NUMBERS):x}"


def decoded(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Undo a request's content-encoding, up to `limit` bytes.

    Raises:
        BadRequest: an encoding that is not known, or data that is not in it.
        BodyTooLarge: more than `limit` bytes come out.
    """
    encoding = (encoding or "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadRequest(f"content-encoding {encoding} is not supported; send identity, gzip or deflate.")
    out, rest = b"", body
    for _ in range(_MEMBERS):
        decoder = zlib.decompressobj(wbits=47 if "gzip" in encoding else 15)
        try:
            out += decoder.decompress(rest, limit + 1 - len(out))
        except zlib.error:
            raise BadRequest(f"The request body is not valid {encoding}.") from None
        if len(out) > limit:
            raise BodyTooLarge(f"The request body is larger than the {limit} bytes accepted here.")
        if not decoder.eof:
            raise BadRequest(f"The request body is not valid {encoding}: it ends too early.")
        # A gzip file may have several members (RFC 1952, section 2.2).
        rest = decoder.unused_data
        if not rest:
            return out
    raise BadRequest(f"The request body is not valid {encoding}: it has too many members.")
