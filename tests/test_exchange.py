from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest, BodyTooLarge, ShuttingDown
from proxy.exchange import Exchange, Shutdown
from proxy.net.bodies import decoded

pytestmark = pytest.mark.anyio


class Client:
    """The server's side of ASGI: what the client sends, then silence until it leaves."""

    def __init__(self, *parts: bytes, **scope: Any) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.left = asyncio.Event()
        self._parts = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
            for number, part in enumerate(parts)
        ]
        base = {"method": "POST", "path": "/v1/x", "headers": [(b"content-type", b"a"), (b"content-type", b"b")]}
        self.exchange = Exchange({**base, **scope}, self._receive, self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._parts:
            return self._parts.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            self.left.set()  # as uvicorn does when the answer is complete

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_the_target_is_what_the_client_asked_for() -> None:
    assert Client(path="/v1/a b", raw_path=b"/v1/a%20b", query_string=b"x=%20").exchange.target == b"/v1/a%20b?x=%20"
    assert Client().exchange.target == b"/v1/x"


async def test_a_body_is_read_whole_up_to_its_limit() -> None:
    assert await Client(b"ab", b"", b"cd").exchange.body(4) == b"abcd"
    assert await Client(b"abcd").exchange.body(4) == b"abcd"
    assert await Client(b"").exchange.body(4) == b""
    with pytest.raises(BodyTooLarge):
        await Client(b"ab", b"cde").exchange.body(4)


async def test_a_client_that_leaves_in_the_middle_of_its_body_ends_the_request() -> None:
    client = Client()
    client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await client.exchange.body(10)
    assert client.exchange.gone


async def test_a_client_that_leaves_cancels_what_is_done_for_it() -> None:
    client = Client(b"")
    await client.exchange.body(10)
    reached = asyncio.Event()

    async def work() -> None:
        with client.exchange.watched():
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())  # noqa: TID251 - the test is the server here
    await reached.wait()
    client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.exchange.gone


async def test_the_end_of_an_answer_is_no_departure() -> None:
    client = Client(b"")
    await client.exchange.body(10)
    with client.exchange.watched():
        await client.exchange.start(200, [])
        await client.exchange.write(b"a")
        await client.exchange.end()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not client.exchange.gone
    assert client.body == b"a"
    assert client.sent[-1]["more_body"] is False


@pytest.mark.parametrize("given", [b"a", b"chat-1_2.3:4/5+6=7@8~9", b"x" * 128])
async def test_a_client_may_name_its_request(given: bytes) -> None:
    assert Client(headers=[(b"x-request-id", given)]).exchange.id == given.decode()


async def test_a_name_that_could_break_a_line_is_replaced() -> None:
    names = [b"", b"x" * 129, b"a b", b'a"', b"caf\xe9", b"a\n", b"<i>"]
    ids = {Client(headers=[(b"x-request-id", name)]).exchange.id for name in names}
    assert len(ids) == len(names)
    assert all(re.fullmatch(r"req_[0-9a-f]+", each) for each in ids)


async def test_every_answer_carries_the_id_and_keeps_the_backends_own_beside_it() -> None:
    client = Client(headers=[(b"x-request-id", b"mine")])
    await client.exchange.start(200, [(b"x-request-id", b"theirs")])
    assert client.sent[0]["headers"] == [(b"x-upstream-request-id", b"theirs"), (b"x-request-id", b"mine")]


@given(st.binary(max_size=200))
def test_an_encoding_is_undone(body: bytes) -> None:
    assert decoded(gzip.compress(body), "gzip", 200) == body
    assert decoded(gzip.compress(body), " X-GZIP", 200) == body
    assert decoded(zlib.compress(body), "deflate", 200) == body
    for none in (None, "", "identity", "Identity"):
        assert decoded(body, none, 0) == body


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    with pytest.raises(BodyTooLarge):
        decoded(bomb, "gzip", 1000)


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (b"{}", "br", "br is not supported"),
        (b"{}", "gzip, gzip", "not supported"),
        (b"{}", "gzip", "not valid gzip"),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", "ends too early"),
        (b"", "gzip", "ends too early"),
        (gzip.compress(b"{}", mtime=0) + b"junk", "gzip", "not valid gzip"),
    ],
    ids=["unknown", "twice", "plain", "cut off", "empty", "junk behind"],
)
def test_what_can_not_be_undone_is_refused(body: bytes, encoding: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        decoded(body, encoding, 1000)


@pytest.mark.parametrize("least", [1, 3, 100])
async def test_a_body_that_was_looked_at_is_read_and_passed_on_whole(least: int) -> None:
    parts = (b"", b"a", b"b", b"c", b"", b"d")
    looked = Client(*parts).exchange
    assert (await looked.peek(least)) == b"abcd"[:least]
    assert await looked.body(4) == b"abcd"
    passed = Client(*parts).exchange
    await passed.peek(least)
    assert b"".join([part async for part in passed.upload()]) == b"abcd"
    changed = Client(*parts, headers=[(b"content-length", b"4")]).exchange
    seen = await changed.peek(least)
    changed.replace_beginning(b"xyz" + seen, 3)
    assert b"".join([part async for part in changed.upload()]) == b"xyzabcd"
    assert changed.headers == [(b"content-length", b"7")]
    too_large = Client(*parts).exchange
    await too_large.peek(least)
    with pytest.raises(BodyTooLarge):
        await too_large.body(3)
    assert await Client(b"").exchange.peek(least) == b""


async def test_a_body_that_tells_too_large_a_length_is_not_read() -> None:
    client = Client(b"abc", headers=[(b"content-length", b"5")])
    with pytest.raises(BodyTooLarge):
        await client.exchange.body(4)
    assert client._parts


async def test_nothing_is_let_in_while_the_server_is_being_stopped() -> None:
    shutdown = Shutdown()
    exchange = Client(state={"shutdown": shutdown}).exchange
    exchange.admit()
    shutdown.draining = True
    with pytest.raises(ShuttingDown):
        exchange.admit()
