"""Requests out of bytes, wherever the network cuts them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.asgi import Scope
from proxy.errors import ClientError, HeadTooLarge
from proxy.server.parsing import Parsing

LIMIT = 2000


class Taken:
    """What was read."""

    def __init__(self) -> None:
        self.heads: list[Scope] = []
        self.kept: list[bool] = []
        self.bodies: list[bytes] = []
        self.ended = 0

    def begun(self) -> None:
        assert self.ended == len(self.heads)

    def requested(self, told: Scope, *, keep_alive: bool, expects: bool) -> None:
        self.heads.append(told)
        self.kept.append(keep_alive)
        self.bodies.append(b"")

    def body(self, data: bytes) -> None:
        self.bodies[-1] += data

    def whole(self) -> None:
        self.ended += 1


def read(*pieces: bytes) -> Taken:
    taken = Taken()
    parsing = Parsing(taken, LIMIT)
    for piece in pieces:
        parsing.feed(piece)
    return taken


def seen(taken: Taken) -> list[tuple[str, str, bytes, bytes, bool]]:
    return [
        (head["method"], head["path"], head["query_string"], body, keep_alive)
        for head, body, keep_alive in zip(taken.heads, taken.bodies, taken.kept, strict=True)
    ]


PLAIN = b"POST /a%20b?c=d HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;y=z\r\nhel\r\n2\r\nlo\r\n0\r\nt: v\r\n\r\n"
OFFER = (
    b"POST /u HTTP/1.1\r\nhost: a\r\nConnection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMA\r\ncontent-length: 5\r\n\r\nhello"
)
BARE = b"\r\nGET http://a HTTP/1.0\r\n\r\n"
EXPECTED = {
    PLAIN: ("POST", "/a b", b"c=d", b"hello", True),
    CHUNKS: ("POST", "/x", b"", b"hello", True),
    OFFER: ("POST", "/u", b"", b"hello", True),
}


@given(st.lists(st.sampled_from([PLAIN, CHUNKS, OFFER]), min_size=1, max_size=4), st.data())
def test_it_does_not_matter_where_requests_are_cut(requests: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(requests)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    taken = read(*pieces)
    assert seen(taken) == [EXPECTED[request] for request in requests]
    assert taken.ended == len(requests)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_whatever_comes_is_read_or_refused(one: bytes, other: bytes) -> None:
    for start in (b"", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"):
        with suppress(ClientError):
            read(start + one, other)


def test_names_are_told_in_lower_case_and_trailers_dropped() -> None:
    assert read(PLAIN).heads[0]["headers"] == [(b"host", b"a"), (b"content-length", b"5")]
    assert b"t" not in dict(read(CHUNKS).heads[0]["headers"])


def test_what_was_offered_is_taken_out_and_the_rest_kept() -> None:
    headers = dict(read(OFFER).heads[0]["headers"])
    assert headers == {b"host": b"a", b"connection": b"keep-alive", b"content-length": b"5"}


def test_a_target_without_a_path_is_the_root() -> None:
    taken = read(BARE)
    head = taken.heads[0]
    assert (head["path"], head["http_version"], taken.kept) == ("/", "1.0", [False])


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 500] * 8],
        [b"GET / HTTP/1.1\r\n", *[b"x: y\r\n" * 80] * 8],
        [b"GET /", *[b"a" * 500] * 8],
        [b"\r\n" * 250] * 12,
        [CHUNKS[:-2], *[b"z: " + b"a" * 500 + b"\r\n"] * 8],
        [CHUNKS.partition(b"z\r\n")[0], *[b"a" * 500] * 8],
        [CHUNKS[:-2] + b"z: a\r\n" * 500 + b"\r\n"],
        [b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500 + b"\r\n"],
        [PLAIN + b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500 + b"\r\n"],
        [b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: a\r\n\r\n"],
    ],
)
def test_nothing_but_a_body_may_go_on_and_on(pieces: list[bytes]) -> None:
    with pytest.raises(HeadTooLarge):
        read(*pieces)


def test_a_body_may_be_as_long_as_it_likes() -> None:
    start = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    taken = read(start, *[b"%x\r\n%b\r\n" % (3000, b"x" * 3000)] * 50, b"0\r\n\r\n")
    assert len(taken.bodies[0]) == 150_000
    assert taken.ended == 1
