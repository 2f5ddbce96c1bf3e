"""The cheapest HTTP client that can tell chunks apart: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from httptools import HttpResponseParser
from typing_extensions import override

from benchmarks.canned import MODEL


@dataclass
class Answer:
    """What came back. Times in seconds from the moment the request was written."""

    status: int = 0
    body: list[bytes] = field(default_factory=list)
    reads: int = 0
    first: float = 0.0
    """Of the body: a head alone brings a user nothing."""
    total: float = 0.0


class Client(asyncio.Protocol):
    """A connection to the target."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer = Answer()
        self._started = 0.0
        self._parser: HttpResponseParser | None = None
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        """Connect to `port` of 127.0.0.1."""
        return (await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port))[1]

    def close(self) -> None:
        """Close the connection; an answer that is not at its end is given up."""
        self._done = None
        if self._transport is not None:
            self._transport.abort()

    def start(self, request: bytes) -> Answer:
        """Write a request; the answer fills as it comes in."""
        assert self._transport is not None, "the target closed the connection"
        self._answer = Answer()
        self._parser = HttpResponseParser(self)
        self._done = self._loop.create_future()
        self._started = perf_counter()
        self._transport.write(request)
        return self._answer

    async def send(self, request: bytes) -> Answer:
        """Write a request and wait for the end of its answer."""
        answer = self.start(request)
        await self.finished()
        return answer

    async def finished(self) -> None:
        """Wait for the end of the answer.

        Raises:
            ConnectionError: the target closed the connection before it.
        """
        assert self._done is not None
        await self._done

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the target closed the connection"))

    @override
    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        self._answer.reads += 1
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        if not self._answer.body:
            self._answer.first = perf_counter() - self._started
        self._answer.body.append(data)

    def on_message_complete(self) -> None:
        """Let `send` return."""
        assert self._parser is not None
        assert self._done is not None
        self._answer.status = self._parser.get_status_code()
        self._answer.total = perf_counter() - self._started
        if not self._done.done():
            self._done.set_result(None)


def chat(messages: Iterable[dict[str, str]], **fields: Any) -> bytes:
    """A chat completion request as bytes, with the headers of an OpenAI SDK."""
    return posted("/v1/chat/completions", {"model": MODEL, **fields, "messages": list(messages)})


def posted(path: str, data: Any) -> bytes:
    """A request with a JSON body as bytes, with the same headers."""
    body = json.dumps(data, separators=(",", ":")).encode()
    head = (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nUser-Agent: OpenAI/Python 2.0.0\r\nAuthorization: Bearer sk-bench\r\n"
        b"Accept-Encoding: gzip, deflate\r\nX-Stainless-Lang: python\r\nContent-Length: %d\r\n\r\n"
    )
    return head % (path.encode(), len(body)) + body


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that the clients' callbacks bring about.

    Raises:
        TimeoutError: it took longer than `seconds`.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - polled, to keep the callbacks bare
            await asyncio.sleep(0.01)
