from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.net.headers import HOP_BY_HOP, Header, credential, response_headers, upstream_headers

names = st.sampled_from(
    [
        *sorted(HOP_BY_HOP),
        b"content-type",
        b"accept",
        b"x-custom",
        b"host",
        b"content-length",
        b"x-spillway-status",
    ]
)
headers = st.lists(st.tuples(names, st.binary(max_size=8)))


def upstream(pairs: list[Header], *, api_key: str | None = None, own: tuple[str, ...] = ()) -> list[Header]:
    return upstream_headers(pairs, api_key=api_key, own_keys=own)


@given(headers)
def test_what_concerns_one_connection_stays_on_it(pairs: list[Header]) -> None:
    sent = {name for name, _ in upstream(pairs)}
    back = {name for name, _ in response_headers(pairs)}
    assert not sent & (HOP_BY_HOP | {b"host", b"content-length", b"x-spillway-status"})
    assert not back & (HOP_BY_HOP | {b"x-spillway-status"})


@given(headers)
def test_all_else_passes_in_its_order(pairs: list[Header]) -> None:
    pairs = [pair for pair in pairs if pair[0] != b"connection"]
    plain = (b"content-type", b"accept", b"x-custom")
    kept = [pair for pair in pairs if pair[0] in plain]
    assert upstream(pairs) == kept
    assert [pair for pair in response_headers(pairs) if pair[0] in plain] == kept


def test_what_connection_names_stays_too() -> None:
    pairs = [
        (b"connection", b"close, X-Custom"),
        (b"x-custom", b"1"),
        (b"connection", b"accept"),
        (b"accept", b"*"),
    ]
    assert upstream(pairs) == []
    assert response_headers(pairs) == []


def test_a_backends_header_names_are_taken_in_any_case() -> None:
    pairs = [
        (b"Connection", b"X-A"),
        (b"X-A", b"1"),
        (b"X-Spillway-Fill", b"9"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
    ]
    assert response_headers(pairs) == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert response_headers([(b"Content-Length", b"5")], drop=(b"content-length",)) == []
    assert response_headers([(b"Content-Length", b"5")]) == [(b"content-length", b"5")]


KEY = (b"authorization", b"Bearer client-key")


def test_the_clients_key_passes_to_a_backend_without_one() -> None:
    assert upstream([KEY, (b"x-api-key", b"k")]) == [KEY, (b"x-api-key", b"k")]


def test_a_backends_own_key_replaces_the_clients() -> None:
    assert upstream([KEY, (b"x-api-key", b"k")], api_key="secret") == [(b"authorization", b"Bearer secret")]
    assert upstream([], api_key="secret") == [(b"authorization", b"Bearer secret")]


@pytest.mark.parametrize("value", [b"Bearer ours", b"bearer  ours ", b"ours"])
def test_spillways_own_keys_never_leave(value: bytes) -> None:
    assert upstream([(b"authorization", value), (b"x-api-key", b"ours"), KEY], own=("ours",)) == [KEY]


def test_further_headers_may_be_dropped() -> None:
    pairs = [
        (b"content-encoding", b"gzip"),
        (b"accept", b"*"),
        (b"expect", b"100-continue"),
        (b"x-conversation-id", b"1"),
    ]
    assert upstream_headers(pairs, api_key=None, own_keys=(), drop={b"content-encoding"}) == [
        (b"accept", b"*")
    ]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer abc", "abc"),
        (b"BEARER  abc ", "abc"),
        (b"abc", "abc"),
        (b"Basic abc", "Basic abc"),
        (b"", ""),
        (b"caf\xe9", "café"),
    ],
)
def test_credentials(value: bytes, key: str) -> None:
    assert credential(value) == key
