"""Heartbeats beside what an answer says: never inside of it, nor after its end."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.types import Message

from proxy.app import Times
from proxy.attempts.client import ClientStream
from proxy.core.piece import Identity
from proxy.dialects.chat.answers import ChatWriter
from proxy.exchange import Exchange
from proxy.net.tasks import running
from tests.proxying import running_proxy
from tests.rawbackend import Call, RawBackend, raw_backend

BEAT = b": spillway\n\n"


class Wire:
    """A client that reads its answer only while it wants to."""

    def __init__(self) -> None:
        self.write_paused = False
        self.room = asyncio.Event()
        self.sent: list[bytes] = []
        """The pieces of the body; the head is the first, and empty."""
        self.ends = 0

    async def send(self, message: Message) -> None:
        if self.write_paused:
            await self.room.wait()
        assert not self.ends
        assert (message["type"] == "http.response.start") is not bool(self.sent)
        self.sent.append(message.get("body", b""))
        self.ends += message.get("more_body") is False

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}


@contextmanager
def streaming(wire: Wire, heartbeat: float = 0.0) -> Iterator[ClientStream]:
    """An answer whose heartbeats come at every turn of the loop, or after so many seconds."""
    scope = {"method": "POST", "path": "/", "headers": [], "http_version": "1.1"}
    writer, own = ChatWriter(), Identity("", 0, "")
    client = ClientStream(
        Exchange(scope, wire.receive, wire.send), writer, form="off", fallback=own, extra_headers=list, grace=0.0,
        heartbeat=heartbeat,
    )  # fmt: skip
    try:
        yield client
    finally:
        client.stop()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def beats() -> list[asyncio.Task[object]]:
    return [task for task in running() if task.get_name() == "heartbeat"]


@pytest.mark.anyio
async def test_a_heartbeat_that_waits_for_the_client_never_comes_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """The client reads again in the very turn in which the answer ends, before the heartbeat has heard of it."""
    wire = Wire()
    with streaming(wire) as client:
        await client.write(b"data: 1\n\n")
        wire.write_paused = True
        await turns()
        assert len(beats()) == 1
        wire.write_paused = False
        wire.room.set()
        await client.end()
        await turns()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (wire.ends, wire.sent[-2:]) == (1, [BEAT, b""])


@pytest.mark.anyio
async def test_nothing_overtakes_the_head_that_a_heartbeat_opens_the_answer_with(caplog: pytest.LogCaptureFixture) -> None:
    """The client had not read the answer before this one."""
    wire = Wire()
    wire.write_paused = True
    with streaming(wire) as client:
        await turns()
        wire.write_paused = False
        wire.room.set()
        await client.write(b"data: 1\n\n")
        await client.end()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert wire.sent[:2] == [b"", BEAT]
    assert b"data: 1\n\n" in wire.sent


@pytest.mark.anyio
async def test_no_heartbeat_overtakes_the_head(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    wire.write_paused = True
    with streaming(wire) as client:
        writing = asyncio.ensure_future(_written(client))
        await asyncio.sleep(0)
        wire.write_paused = False
        await turns()  # heartbeats could go out now
        wire.room.set()
        await writing
        await client.end()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert wire.sent[:2] == [b"", b"data: 1\n\n"]


async def _written(client: ClientStream) -> None:
    await client.write(b"data: 1\n\n")


@pytest.mark.anyio
async def test_no_heartbeat_follows_an_error_that_came_just_as_it_was_due() -> None:
    wire = Wire()
    with streaming(wire) as client:
        await asyncio.sleep(0)
        client.stop()
        await client.exchange.reply(500, [], b"{}")
        await turns()
    assert wire.sent == [b"", b"{}"]


@pytest.mark.anyio
async def test_a_sign_comes_when_nothing_has_come_for_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, wire = asyncio.get_running_loop(), Wire()
    now = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    beats_by_second = list[int]()
    with streaming(wire, Times().heartbeat) as client:
        for second in range(30):
            await turns()
            if second < 7:
                await client.write(b"data: 1\n\n")
            beats_by_second.append(wire.sent.count(BEAT))
            now[0] += 1
    assert [beats_by_second.index(count) for count in (1, 2, 3)] == [0, 16, 26]


@pytest.mark.anyio
async def test_heartbeats_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    wire = Wire()
    with streaming(wire) as client:
        await client.write(b"data: 1\n\n")
        wire.write_paused = True
        for _ in range(10):
            await turns()
        assert len(beats()) == 1


@pytest.mark.slow
def test_an_answer_that_can_not_be_read_is_an_error_in_a_stream_that_was_opened(caplog: pytest.LogCaptureFixture) -> None:
    def backend(_: RawBackend, call: Call) -> None:
        if not call.path.endswith("/chat/completions"):
            call.send(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        opened.wait(20)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: exotic\r\nconnection: close\r\n"
        call.send(head + b"\r\n\x01\x02")

    opened = threading.Event()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with (
        raw_backend(backend) as raw,
        running_proxy(raw.setting, grace=0.0, heartbeat=30.0) as proxy,
        proxy.client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        opened.set()
        said = b"".join(answer.iter_bytes())
    assert b'"code":"upstream_invalid"' in said
    assert said.endswith(b"data: [DONE]\n\n")
    assert not [record for record in caplog.records if "failed" in record.getMessage()]
