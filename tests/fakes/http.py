"""One request being answered: what came, how to answer it, and what was sent."""

import asyncio
import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson

from tests.fakes.model import Refused
from tests.fakes.server import Receive, Scope, Send

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"


@dataclass(slots=True)
class Recorded:
    """A request as it came over the wire, and what was sent back (body bytes as sent, gzip included)."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    """In the order they came, names in lower case."""
    body: bytes = b""
    status: int = 0
    response_headers: list[tuple[str, str]] = field(default_factory=list)
    sent: bytearray = field(default_factory=bytearray)
    ended: str = "running"
    """`running`, `complete`, `cut` (dropped by the fake) or `cancelled` (the client went away)."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def json(self) -> Any:
        """The request body parsed (and unpacked, if it came gzipped); None when it is not JSON."""
        try:
            return orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return None

    @property
    def content(self) -> bytes:
        """The request body, unpacked if it came gzipped."""
        return gzip.decompress(self.body) if self.header("content-encoding") == "gzip" else self.body

    @property
    def params(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def response(self) -> bytes:
        return bytes(self.sent)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sent).hexdigest()


class Exchange:
    """The way to answer one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        self.request = Recorded(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers)
        self.gone = False
        self._scope, self._receive, self._send = scope, receive, send
        self.zip_json = False
        self.headers: list[tuple[str, str]] = []
        """Headers of every response of this kind."""
        self.sticky = False
        """The answer is made to its end even when the client goes away."""

    @property
    def started(self) -> bool:
        return self.request.status > 0

    async def read(self) -> None:
        more, pieces = True, []
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.request.body = b"".join(pieces)

    async def departure(self) -> None:
        """Wait until the client has gone, or the response is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def json_object(self) -> dict[str, Any]:
        """The request body, which must be a JSON object.

        Raises:
            Refused: it is not; the body of the refusal is None, for the kind to fill in.
        """
        value = self.request.json
        if not isinstance(value, dict):
            raise Refused(400, None)
        return value

    async def answer(self, status: int, body: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole response: JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        own = list(headers)
        if not any(name.lower() == "content-type" for name, _ in own):
            own.append(("content-type", JSON))
        if self.zip_json and self._accepts_gzip():
            data = gzip.compress(data, mtime=0)
            own.append(("content-encoding", "gzip"))
        await self._start(status, [*own, ("content-length", str(len(data)))])
        await self._write(data, more=False)
        self.request.ended = "complete"

    async def open(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send status line and headers of a response of unknown length."""
        own = [("content-type", content_type), *headers]
        await self._start(status, own)

    async def write(self, data: bytes) -> None:
        await self._write(data, more=True)

    async def event(self, data: Any, name: bytes = b"") -> None:
        await self.write((b"event: " + name + b"\n" if name else b"") + b"data: " + orjson.dumps(data) + b"\n\n")

    async def close(self, *, hang_up: bool = False) -> None:
        """End the body in good order, and hang up without having said so, if asked to."""
        await self._write(b"", more=False)
        self.request.ended = "complete"
        if hang_up:
            self._scope["transport"].close()

    async def cut(self) -> None:
        """Send what is buffered and drop the connection, with the response unfinished."""
        self.request.ended = "cut"
        transport: asyncio.Transport = self._scope["transport"]
        transport.close()
        await self.departure()

    def _accepts_gzip(self) -> bool:
        return "gzip" in (self.request.header("accept-encoding") or "")

    async def _start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.request.status = status
        self.request.response_headers = [*self.headers, *headers]
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.request.response_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, data: bytes, *, more: bool) -> None:
        self.request.sent += data
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
