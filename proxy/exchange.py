"""One client's HTTP request and the way to answer it: ASGI without a framework on the hot path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex
from typing import Any, TypeAlias

from proxy.errors import BadRequest, BodyTooLarge, ClientError
from proxy.net.inflate import UNDONE, Undecodable, undone
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
        self._uploaded: asyncio.Event | None = None
        """Set once nobody takes the body any more; None: it is not passed on while it arrives."""

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

    def upload(self) -> AsyncIterator[bytes]:
        """The body as it arrives, to be passed on: nobody takes more of it once the answer begins."""
        self._uploaded = asyncio.Event()
        return self._upload(self._uploaded)

    async def _upload(self, uploaded: asyncio.Event) -> AsyncIterator[bytes]:
        async for part in self.body_stream():
            yield part
        uploaded.set()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel what runs inside when the client leaves. The body must have been read, or be an `upload`."""
        task = asyncio.current_task()
        assert task is not None
        watcher = spawn(self._watch(task), name="client-watch")
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        if self._uploaded is not None:
            await self._uploaded.wait()  # until then it is the upload that sees the client leave
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
        if self._uploaded is not None:
            self._uploaded.set()
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
    if encoding not in UNDONE:
        raise BadRequest(f"content-encoding {encoding} is not supported; send identity, gzip or deflate.")
    try:
        plain = undone(body, encoding, limit)
    except Undecodable as error:
        raise BadRequest(f"The request body is not valid {encoding}: {error}.") from None
    if plain is None:
        raise BodyTooLarge(f"The request body is larger than the {limit} bytes accepted here.")
    return plain
