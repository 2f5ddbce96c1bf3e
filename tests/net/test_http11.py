"""The connection's parsing and flow control, driven without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.net.http11 import HIGH_WATER, JOIN_LIMIT, Connection
from proxy.net.sending import Seconds

pytestmark = pytest.mark.anyio

BODY = 'data: {"a": "\u2028\x85"}\n\ndata: [DONE]\n\n'.encode()
HEADERS = [(b"Content-Type", b"text/event-stream"), (b"X-Twice", b"1"), (b"X-Twice", b"2")]
HEAD = b"HTTP/1.1 200 Fine\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in HEADERS)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
RESPONSES = {
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunked": CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (BODY[:7], BODY[7:])) + b"0\r\n\r\n",
    "after a 1xx": b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n"
    + HEAD
    + b"Content-Length: %d\r\n\r\n" % len(BODY)
    + BODY,
    "to the end": HEAD + b"\r\n" + BODY,
}


class Wire(asyncio.Transport):
    """A transport that keeps what is written and whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.open = True

    @override
    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    @override
    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written.append(b"".join(list_of_data))

    @override
    def get_write_buffer_size(self) -> int:
        return 0

    @override
    def is_closing(self) -> bool:
        return not self.open

    @override
    def pause_reading(self) -> None:
        self.reading = False

    @override
    def resume_reading(self) -> None:
        self.reading = True

    @override
    def abort(self) -> None:
        self.open = False


class Keeper:
    """An owner that counts the connections that are gone."""

    def __init__(self) -> None:
        self.gone = 0

    def connection_gone(self, connection: Connection) -> None:
        self.gone += 1


def started(body: bytes = b"", *, head_only: bool = False) -> tuple[Connection, Wire]:
    wire = Wire()
    connection = Connection(asyncio.get_running_loop(), Keeper(), ("http", "127.0.0.1", 80))
    connection.connection_made(wire)
    connection.start(b"POST / HTTP/1.1\r\n\r\n", body, Seconds(60.0, 60.0), head_only=head_only)
    return connection, wire


async def answer_of(
    response: bytes, cuts: Iterable[int]
) -> tuple[int, bytes, list[tuple[bytes, bytes]], bytes, bool]:
    connection, _ = started()
    at = 0
    for cut in [*sorted({min(cut, len(response)) for cut in cuts}), len(response)]:
        if cut > at:
            connection.data_received(response[at:cut])
            at = cut
    reusable_after = connection
    connection.connection_lost(None) if response is RESPONSES["to the end"] else None
    await connection.read_head()
    body = b""
    while data := await connection.read():
        body += data
    kept = reusable_after.reusable
    connection.abort()
    return connection.status, connection.reason, connection.headers, body, kept


@pytest.mark.parametrize("kind", sorted(RESPONSES))
@given(cuts=st.lists(st.integers(0, 400), max_size=40))
def test_any_cutting_into_segments_gives_the_same_answer(kind: str, cuts: list[int]) -> None:
    status, reason, headers, body, kept = asyncio.run(answer_of(RESPONSES[kind], cuts))
    assert (status, reason, body) == (200, b"Fine", BODY)
    assert headers[:3] == HEADERS
    assert kept is (kind != "to the end")


@given(junk=st.binary(max_size=200))
def test_arbitrary_bytes_end_in_an_answer_or_an_httpx_error(junk: bytes) -> None:
    async def feed() -> None:
        connection, _ = started()
        if junk:
            connection.data_received(junk)
        connection.connection_lost(None)
        try:
            await connection.read_head()
            while await connection.read():
                pass
        except httpx.HTTPError:
            pass
        assert not connection.reusable

    asyncio.run(feed())


async def test_a_reader_that_falls_behind_stops_the_socket() -> None:
    connection, wire = started()
    connection.data_received(CHUNKED)
    piece = b"x" * (HIGH_WATER // 2)
    segment = b"%x\r\n%b\r\n" % (len(piece), piece)
    connection.data_received(segment)
    connection.data_received(segment)
    seen = [wire.reading]
    connection.data_received(b"1\r\nx\r\n")
    seen.append(wire.reading)
    await connection.read_head()
    assert len(await connection.read()) == HIGH_WATER + 1
    assert [*seen, wire.reading] == [True, False, True]
    connection.abort()


async def test_small_requests_are_one_write_and_large_ones_are_not_copied() -> None:
    connection, wire = started(b"x" * JOIN_LIMIT)
    assert len(wire.written) == 1
    connection.abort()
    connection, wire = started(b"x" * (JOIN_LIMIT + 1))
    assert [len(data) for data in wire.written] == [19, JOIN_LIMIT + 1]
    connection.abort()


async def test_a_connection_lost_while_idle_refuses_the_next_request() -> None:
    connection, _ = started(head_only=True)
    connection.data_received(CHUNKED)
    fit = [connection.reusable]
    connection.connection_lost(ConnectionResetError("reset by peer"))
    assert [*fit, connection.reusable] == [True, False]
    with pytest.raises(httpx.ReadError):
        connection.start(b"", b"", Seconds(1.0, 1.0), head_only=False)


async def test_a_reset_is_a_read_error_that_says_so() -> None:
    connection, _ = started()
    connection.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(httpx.ReadError, match="reset by peer"):
        await connection.read_head()


async def test_a_slow_client_is_not_a_silent_server() -> None:
    connection, _ = started()
    connection.data_received(CHUNKED)
    connection._silence.watch(0.01)
    await asyncio.sleep(0.05)  # nobody waits for the body all this time
    connection.data_received(b"2\r\nok\r\n0\r\n\r\n")
    await connection.read_head()
    assert await connection.read() == b"ok"
    connection.abort()


def pieces(*data: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in data)


async def begun_reading() -> tuple[Connection, asyncio.Task[bytes]]:
    """A response whose body somebody waits for."""
    connection, _ = started()
    connection.data_received(CHUNKED)
    await connection.read_head()
    reading = asyncio.ensure_future(connection.read())
    await asyncio.sleep(0)
    return connection, reading


async def test_a_taker_gets_a_piece_that_somebody_waits_for_and_he_goes_on_waiting() -> None:
    connection, reading = await begun_reading()
    taken: list[bytes] = []
    connection.taker = lambda data: data != b"no" and not taken.append(data)  # type: ignore[func-returns-value]
    connection._silence.heard = 0.0
    connection.data_received(pieces(b"one"))
    assert connection._silence.heard > 0.0
    connection.data_received(pieces(b"two"))
    await asyncio.sleep(0)
    assert not reading.done()
    connection.data_received(pieces(b"no"))
    connection.data_received(pieces(b"three"))  # not before the one that was not taken is read
    assert (await reading, taken) == (b"nothree", [b"one", b"two"])
    connection.abort()


async def test_a_taker_is_offered_neither_several_pieces_nor_the_last() -> None:
    connection, reading = await begun_reading()
    connection.taker = lambda _: pytest.fail("it was offered one")
    connection.data_received(pieces(b"one", b"two"))
    assert await reading == b"onetwo"
    reading = asyncio.ensure_future(connection.read())
    await asyncio.sleep(0)
    connection.data_received(pieces(b"end") + b"0\r\n\r\n")
    assert [await reading, await connection.read()] == [b"end", b""]
    connection.abort()


async def test_a_reader_that_was_cancelled_gets_no_piece_taken_for_him() -> None:
    connection, reading = await begun_reading()
    connection.taker = lambda _: pytest.fail("it was offered one")
    reading.cancel()
    connection.data_received(pieces(b"one"))
    with pytest.raises(asyncio.CancelledError):
        await reading
    connection.abort()


async def test_what_goes_wrong_in_a_taker_is_raised_to_the_reader() -> None:
    connection, reading = await begun_reading()

    def take(_: bytes) -> bool:
        raise ZeroDivisionError

    connection.taker = take
    connection.data_received(pieces(b"one"))
    with pytest.raises(ZeroDivisionError):
        await reading
    connection.abort()
