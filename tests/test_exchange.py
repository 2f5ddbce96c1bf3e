import asyncio
import gzip
import re
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest, BodyTooLarge
from proxy.exchange import Exchange, decoded

pytestmark = pytest.mark.anyio


class Client:
    """The server's side of ASGI: what the client sends, then silence."""

    def __init__(self, *parts: bytes, **scope: Any) -> None:
        self._parts = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)} for number, part in enumerate(parts)
        ]
        base = {"method": "POST", "path": "/v1/x", "headers": []}
        self.exchange = Exchange({**base, **scope}, self._receive, self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._parts:
            return self._parts.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        raise AssertionError(message)


async def test_a_name_that_could_break_a_line_is_replaced() -> None:
    names = [b"", b"x" * 129, b"a b", b'a"', b"caf\xe9", b"a\n", b"<i>"]
    ids = {Client(headers=[(b"x-request-id", name)]).exchange.id for name in names}
    assert len(ids) == len(names)
    assert all(re.fullmatch(r"req_[0-9a-f]+", each) for each in ids)


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
        (b"{}", "br", "br is not supported"), (b"{}", "gzip, gzip", "not supported"), (b"{}", "gzip", "not valid gzip"),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", "ends too early"), (b"", "gzip", "ends too early"),
        (gzip.compress(b"{}", mtime=0) + b"junk", "gzip", "not valid gzip"),
    ],
    ids=["unknown", "twice", "plain", "cut off", "empty", "junk behind"],
)  # fmt: skip
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
    changed.replace_beginning(b"xyz" + seen)
    assert b"".join([part async for part in changed.upload()]) == b"xyzabcd"
    assert changed.headers == [(b"content-length", b"7")]
    too_large = Client(*parts).exchange
    await too_large.peek(least)
    with pytest.raises(BodyTooLarge):
        await too_large.body(3)
    assert await Client(b"").exchange.peek(least) == b""
