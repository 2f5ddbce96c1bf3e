"""A client that is not read, because what it sent before is not yet done, is not blamed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from proxy.asgi import Receive, Scope, SendMessage
from proxy.server import Guard, Limits
from proxy.server.connection import ClientConnection

pytestmark = pytest.mark.anyio

TIMEOUT = 60.0


class Clock:
    """The loop's, as far as a connection looks at it."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        call()


class Wire:
    """A transport on which nothing waits."""

    def __init__(self) -> None:
        self.out = b""
        self.reads = True

    def get_extra_info(self, _: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.out += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write_eof(self) -> None:
        """Nothing more comes."""


class Side:
    """One connection, whose application answers a request for which `go` was set, once it has all of it."""

    def __init__(self) -> None:
        self.clock, self.wire, self.go = Clock(), Wire(), asyncio.Event()
        config = cast("Config", SimpleNamespace(loaded_app=self.app))
        loop = cast("asyncio.AbstractEventLoop", self.clock)
        self.connection = ClientConnection(Guard(Limits(timeout=TIMEOUT)), config, ServerState(), {}, loop)
        self.connection.connection_made(cast("asyncio.Transport", self.wire))

    async def app(self, _: Scope, receive: Receive, send: SendMessage) -> None:
        await self.go.wait()
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.connection.check(self.clock.now)
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def post(size: int) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size


@pytest.mark.parametrize(
    ("sent", "missing"), [([b"", b"x" * 10], 5), ([b"", b"x" * 10, b""], 20)], ids=["body", "head"]
)
async def test_a_request_behind_another_has_its_time_once_it_is_read(sent: list[bytes], missing: int) -> None:
    side = Side()
    whole = b"".join(post(len(body)) + body for body in sent)
    side.connection.data_received(whole[:-missing])
    await settled()
    assert not side.wire.reads
    for _ in range(10):
        await side.later(TIMEOUT)
    side.go.set()
    await settled()
    await side.later(TIMEOUT / 2)
    side.connection.data_received(whole[-missing:])
    await settled()
    assert side.wire.out.count(b"HTTP/1.1 200") == len(sent)
    assert b" 408 " not in side.wire.out


async def test_a_body_that_nobody_takes_has_its_time_once_it_is_taken() -> None:
    side = Side()
    size = 200_000
    side.connection.data_received(post(size) + b"x" * (size // 2))
    await settled()
    assert not side.wire.reads
    for _ in range(20):
        await side.later(TIMEOUT)
    side.go.set()
    await settled()
    await side.later(TIMEOUT / 2)
    side.connection.data_received(b"x" * (size // 2))
    await settled()
    assert side.wire.out.startswith(b"HTTP/1.1 200")


async def test_a_body_that_stops_after_it_was_taken_is_not_waited_for() -> None:
    side = Side()
    side.connection.data_received(post(200_000) + b"x" * 100_000)
    await settled()
    await side.later(20 * TIMEOUT)
    side.go.set()
    await settled()
    await side.later(TIMEOUT + 1)
    assert side.wire.out.startswith(b"HTTP/1.1 408")
