"""What an application sends in one step of the loop goes out in one piece: each sending costs, and wakes the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest
from typing_extensions import override
from uvicorn import Config
from uvicorn.server import ServerState

from proxy.asgi import Receive, Scope, SendMessage
from proxy.server import Guard, Limits
from proxy.server.connection import ClientConnection

pytestmark = pytest.mark.anyio

Answering: TypeAlias = Callable[[SendMessage], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = b"x" * 100_000


class Wire(asyncio.Transport):
    """A transport that keeps what is written, as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[bytes] = []

    @override
    def write(self, data: Any) -> None:
        self.out.append(bytes(data))

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None) if name == "socket" else default

    @override
    def abort(self) -> None:
        """Nothing is left to be dropped."""

    @override
    def get_write_buffer_size(self) -> int:
        return 0

    @override
    def is_closing(self) -> bool:
        return False


async def begin(send: SendMessage) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def say(send: SendMessage, data: bytes = b"", *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def written(answer: Answering) -> list[bytes]:
    wire = Wire()

    async def app(_: Scope, receive: Receive, send: SendMessage) -> None:
        await receive()
        await answer(send)

    config = cast("Config", SimpleNamespace(loaded_app=app))
    connection = ClientConnection(Guard(Limits()), config, ServerState(), {})
    connection.connection_made(wire)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    for _ in range(20):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return wire.out


async def test_the_end_goes_out_with_the_last_piece() -> None:
    async def answer(send: SendMessage) -> None:
        await begin(send)
        await say(send, b"a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await say(send, b"b")
        await say(send, more=False)

    assert await written(answer) == [HEAD + b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"]


async def test_a_piece_waits_for_no_other() -> None:
    async def answer(send: SendMessage) -> None:
        await begin(send)
        for each in (b"a", b"b"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await say(send, each)
        await asyncio.Event().wait()

    assert await written(answer) == [HEAD, b"1\r\na\r\n", b"1\r\nb\r\n"]


async def test_what_is_large_is_neither_copied_nor_kept() -> None:
    async def answer(send: SendMessage) -> None:
        await begin(send)
        await say(send, LARGE)
        await say(send, b"a")
        await say(send, LARGE)
        await say(send, more=False)

    chunk = b"186a0\r\n" + LARGE + b"\r\n"
    assert await written(answer) == [HEAD, chunk, b"1\r\na\r\n", chunk, b"0\r\n\r\n"]


async def test_what_was_said_before_an_answer_broke_off_is_sent() -> None:
    async def answer(send: SendMessage) -> None:
        await begin(send)
        await say(send, b"a")
        raise asyncio.CancelledError

    assert await written(answer) == [HEAD + b"1\r\na\r\n"]
