from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.net.headers import ProxyKeys, credential, is_credential

LONG = "sk-spillway-Ünïque+/=1"
keys = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=8, max_size=40)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        *((b"Bearer abc", b"abc"), (b"BEARER  abc ", b"abc"), (b"abc", b"abc"), (b"Basic abc", b"Basic abc"), (b"", b"")),
        (b"caf\xe9", b"caf\xe9"),
    ],
)
def test_credentials(value: bytes, key: bytes) -> None:
    assert credential(value) == key


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((b"authorization", True), (b"x-api-key", True), (b"api-key", True), (b"x-goog-api-key", True)),
        *(
            (b"apikey", True), (b"x-auth-token", True), (b"x-auth-key", True), (b"x-jwt", True),
            (b"ocp-apim-subscription-key", True),
        ),
        *((b"cookie", False), (b"idempotency-key", False), (b"x-csrf-token", False), (b"user-agent", False)),
        *((b"sec-websocket-key", False), (b"x-tokens", False)),
    ],
)  # fmt: skip
def test_headers_in_which_clients_say_who_they_are(name: bytes, is_one: bool) -> None:
    assert is_credential(name) is is_one


@given(keys, st.binary(max_size=20), st.binary(max_size=20))
def test_a_key_is_found_however_it_is_sent(key: str, before: bytes, after: bytes) -> None:
    own = ProxyKeys(["another-key-of-ours", key])
    pair = before.replace(b":", b"") + b":" + key.encode()
    for value in (
        before + key.encode() + after,
        b"Token " + key.encode(),
        b"sid=1; k=" + key.encode() + b"; x=2",
        quote(key, safe="").encode(),
        b"Basic " + b64encode(pair),
        b"basic " + b64encode(pair).rstrip(b"="),
        b"Basic " + b64encode(key.encode() + b":"),
    ):
        assert own.are_in(value)


def test_a_key_is_found_in_latin_1_too() -> None:
    assert ProxyKeys([LONG]).are_in(b"Bearer " + LONG.encode("latin-1"))


@given(st.binary(max_size=60))
def test_where_there_are_no_keys_nothing_is_one(value: bytes) -> None:
    assert not ProxyKeys().are_in(value)
    assert ProxyKeys().without(value) == value


def test_a_short_key_is_found_where_it_stands_alone() -> None:
    own = ProxyKeys(["ab", "8"])
    for value in (b"Bearer ab", b"ab", b"x=ab;y", b"8"):
        assert own.are_in(value)
    for value in (b"abc", b"cab", b"application/json; charset=utf-80", b"a b", b"18"):
        assert not own.are_in(value)


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        (b"/v1/x", b"/v1/x"), (b"/v1/x?key=sk-spillway-1&b=2", b"/v1/x?b=2"),
        (b"/v1/x?b=2&key=sk%2Dspillway%2D1", b"/v1/x?b=2"), (b"/v1/x?key=sk-spillway-1", b"/v1/x"),
        (b"/v1/x?a=1&&b=%20&c", b"/v1/x?a=1&&b=%20&c"), (b"/v1/x?", b"/v1/x?"),
    ],
)  # fmt: skip
def test_a_parameter_with_a_key_is_left_out(target: bytes, kept: bytes) -> None:
    assert ProxyKeys(["sk-spillway-1"]).without(target) == kept
