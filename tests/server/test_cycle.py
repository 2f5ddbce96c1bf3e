"""One answer as bytes: its head, how its end is told, and what is no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.asgi import AsgiMessage, Receive, Scope, SendMessage
from proxy.errors import BrokenOff
from proxy.server.cycle import Cycle

pytestmark = pytest.mark.anyio

Headers = list[tuple[bytes, bytes]]


class Wire:
    """A connection that remembers what was done to it."""

    draining = False

    def __init__(self) -> None:
        self.sent = b""
        self.write_paused = False
        self.reading = True
        self.ended = ""
        self.room = asyncio.Event()

    def put(self, data: bytes) -> None:
        self.write(data)

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drained(self) -> None:
        await self.room.wait()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def answered(self) -> None:
        self.ended = "answered"

    def cut_off(self, *, at_once: bool) -> None:
        self.ended = "reset" if at_once else "closed"


def cycle(wire: Wire, *, method: str = "POST", version: str = "1.1", keep_alive: bool = True) -> Cycle:
    made = Cycle(wire, {"method": method, "http_version": version}, keep_alive=keep_alive, expects=False)
    made.whole()
    return made


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> AsgiMessage:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", *, more: bool = False) -> AsgiMessage:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def answered(*messages: AsgiMessage, **options: Any) -> bytes:
    wire = Wire()
    made = cycle(wire, **options)
    for message in messages:
        await made.send(message)
    assert wire.ended == "answered"
    return wire.sent


LENGTH = (b"content-length", b"2")


@pytest.mark.parametrize(
    ("options", "messages", "expected"),
    [
        ({}, (start(200, LENGTH), body(b"ok")), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        (
            {},
            (start(), body(b"ok", more=True), body()),
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        ({}, (start(999, LENGTH), body(b"ok")), b"HTTP/1.1 999 \r\ncontent-length: 2\r\n\r\nok"),
        ({}, (start(304, LENGTH), body()), b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n"),
        ({}, (start(204), body(b"no")), b"HTTP/1.1 204 No Content\r\n\r\n"),
        (
            {"method": "HEAD"},
            (start(200, LENGTH), body(b"ok")),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n",
        ),
        ({"method": "HEAD"}, (start(), body()), b"HTTP/1.1 200 OK\r\n\r\n"),
        (
            {"keep_alive": False},
            (start(200, LENGTH), body(b"ok")),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        ),
        (
            {},
            (start(200, (b"Connection", b"Close"), (b"transfer-encoding", b"x"), LENGTH), body(b"ok")),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        ),
        (
            {"version": "1.0"},
            (start(), body(b"ok")),
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
        ),
        (
            {"version": "1.0"},
            (start(200, LENGTH), body(b"ok")),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok",
        ),
    ],
)
async def test_the_end_of_an_answer_is_told_in_the_way_that_fits(
    options: dict[str, Any], messages: tuple[AsgiMessage, ...], expected: bytes
) -> None:
    assert await answered(*messages, **options) == expected
    if len(messages) == 2:
        wire = Wire()
        begun, ended = messages
        await cycle(wire, **options).answer(begun["status"], begun["headers"], ended["body"])
        assert (wire.sent, wire.ended) == (expected, "answered")


@pytest.mark.parametrize(
    "messages",
    [
        (start(200, (b"x", b"a\r\nset-cookie: b")),),
        (start(200, (b"x\n", b"a")),),
        (start(200, (b"x", b"a\0")),),
        (start(0),),
        (start(101),),
        (start(200, LENGTH), body(b"long")),
        (start(200, LENGTH), body(b"s")),
        (start(200, LENGTH), body(b"ok"), body(b"more")),
    ],
)
async def test_what_is_no_answer_is_not_sent(messages: tuple[AsgiMessage, ...]) -> None:
    made = cycle(Wire())
    for message in messages[:-1]:
        await made.send(message)
    with pytest.raises(RuntimeError):
        await made.send(messages[-1])


@pytest.mark.parametrize("wrong", [b"long", b"s"])
async def test_of_an_answer_at_once_that_is_none_nothing_is_sent(wrong: bytes) -> None:
    wire = Wire()
    made = cycle(wire)

    async def application(*_: object) -> None:
        await made.answer(200, [LENGTH], wrong)

    await made.run(application)
    assert wire.sent.startswith(b"HTTP/1.1 500 ")


async def test_a_large_answer_goes_out_whole() -> None:
    wire = Wire()
    await cycle(wire).answer(200, [(b"content-length", b"100000")], b"x" * 100_000)
    assert wire.sent == b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000


async def test_an_answer_at_once_waits_for_a_client_that_does_not_read() -> None:
    wire = Wire()
    made = cycle(wire)
    wire.write_paused = True
    waiting = asyncio.ensure_future(made.answer(200, [LENGTH], b"ok"))
    await asyncio.sleep(0)
    assert wire.sent == b""
    made.disconnect()
    wire.room.set()
    await waiting
    assert wire.sent == b""


def app(*messages: AsgiMessage, fails: BaseException | None = None) -> Any:
    async def application(scope: Scope, receive: Receive, send: SendMessage) -> None:
        for message in messages:
            await send(message)
        if fails is not None:
            raise fails

    return application


@pytest.mark.parametrize(
    ("application", "version", "ended"),
    [
        (app(start(), body(b"a", more=True), fails=BrokenOff()), "1.1", "closed"),
        (app(start(200, LENGTH), body(b"a", more=True), fails=BrokenOff()), "1.1", "closed"),
        (app(start(), body(b"a", more=True), fails=BrokenOff()), "1.0", "reset"),
        (app(start(), body(b"a", more=True)), "1.1", "closed"),
        (app(start(200, LENGTH), body(b"ok"), fails=BrokenOff()), "1.1", "answered"),
    ],
)
async def test_an_answer_that_breaks_off_is_seen_to_be_none(
    application: Any, version: str, ended: str
) -> None:
    wire = Wire()
    await cycle(wire, version=version).run(application)
    assert wire.ended == ended
    assert (b"\r\n0\r\n" in wire.sent) is False


@pytest.mark.parametrize("application", [app(), app(fails=KeyError("x")), app(fails=BrokenOff())])
async def test_who_gets_no_answer_is_told_that(application: Any) -> None:
    wire = Wire()
    await cycle(wire).run(application)
    assert wire.sent.startswith(b"HTTP/1.1 500 ")
    assert b'"internal_error"' in wire.sent
    assert wire.ended == "answered"


async def test_a_cancelled_answer_ends_the_connection() -> None:
    wire = Wire()
    with pytest.raises(asyncio.CancelledError):
        await cycle(wire).run(app(fails=asyncio.CancelledError()))
    assert wire.ended == "reset"


async def test_nothing_more_is_sent_while_the_client_does_not_read() -> None:
    wire = Wire()
    made = cycle(wire)
    await made.send(start())
    wire.write_paused = True
    before = wire.sent
    waiting = asyncio.ensure_future(made.send(body(b"a", more=True)))
    await asyncio.sleep(0)
    assert wire.sent == before
    wire.write_paused = False
    wire.room.set()
    await waiting
    assert wire.sent.endswith(b"1\r\na\r\n")


async def test_a_body_that_nobody_takes_is_left_with_the_client() -> None:
    wire = Wire()
    made = Cycle(wire, {"method": "POST", "http_version": "1.1"}, keep_alive=True, expects=False)
    made.feed(b"x" * 70_000)
    assert not wire.reading
    message = await made.receive()
    assert (len(message["body"]), message["more_body"]) == (70_000, True)
    assert wire.reading


async def test_what_is_left_of_a_body_is_there_once_all_of_it_is() -> None:
    made = Cycle(Wire(), {"method": "POST", "http_version": "1.1"}, keep_alive=True, expects=False)
    made.feed(b"a")
    assert made.rest() is None
    assert await made.receive() == {"type": "http.request", "body": b"a", "more_body": True}
    made.feed(b"b")
    made.feed(b"c")
    made.whole()
    assert made.rest() == b"bc"
    assert made.rest() is None
    asked = asyncio.ensure_future(made.receive())
    await asyncio.sleep(0)
    assert not asked.done()
    made.disconnect()
    assert (await asked)["type"] == "http.disconnect"


async def test_a_piece_of_a_body_that_is_waited_for_is_given_when_it_comes() -> None:
    made = Cycle(Wire(), {"method": "POST", "http_version": "1.1"}, keep_alive=True, expects=False)
    asked = asyncio.ensure_future(made.receive())
    await asyncio.sleep(0)
    made.feed(b"a")
    assert await asked == {"type": "http.request", "body": b"a", "more_body": True}
    asked = asyncio.ensure_future(made.receive())
    await asyncio.sleep(0)
    made.whole()
    assert await asked == {"type": "http.request", "body": b"", "more_body": False}


async def test_who_waits_to_be_asked_for_a_body_is_asked() -> None:
    wire = Wire()
    made = Cycle(wire, {"method": "POST", "http_version": "1.1"}, keep_alive=True, expects=True)
    made.feed(b"a")
    made.whole()
    assert made.rest() is None
    assert (await made.receive())["body"] == b"a"
    assert wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_an_answer_before_the_end_of_the_body_ends_the_connection() -> None:
    wire = Wire()
    made = Cycle(wire, {"method": "POST", "http_version": "1.1"}, keep_alive=True, expects=True)
    await made.send(start(413, LENGTH))
    await made.send(body(b"no"))
    assert b"connection: close" in wire.sent
    assert b"100 Continue" not in wire.sent
    assert (await made.receive())["type"] == "http.disconnect"


async def test_what_is_sent_to_one_who_left_goes_nowhere() -> None:
    wire = Wire()
    made = cycle(wire)
    made.disconnect()
    await made.send(start())
    await made.send(body(b"x"))
    assert wire.sent == b""
    assert (await made.receive())["type"] == "http.disconnect"
