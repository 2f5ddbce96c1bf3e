import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.net.headers import HOP_BY_HOP, Header, ProxyKeys, request_headers, response_headers

names = st.sampled_from(
    [*sorted(HOP_BY_HOP), b"content-type", b"accept", b"x-custom", b"host", b"content-length", b"x-spillway-status"]
)
headers = st.lists(st.tuples(names, st.binary(max_size=8)))


def upstream(pairs: list[Header], *, api_key: str | None = None, own: tuple[str, ...] = ()) -> list[Header]:
    authorization = None if api_key is None else b"Bearer " + api_key.encode()
    return request_headers(pairs, authorization=authorization, proxy_keys=ProxyKeys(own))


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
    pairs = [(b"connection", b"close, X-Custom"), (b"x-custom", b"1"), (b"connection", b"accept"), (b"accept", b"*")]
    assert upstream(pairs) == []
    assert response_headers(pairs) == []


def test_a_backends_header_names_are_taken_in_any_case() -> None:
    pairs = [(b"Connection", b"X-A"), (b"X-A", b"1"), (b"X-Spillway-Fill", b"9"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    assert response_headers(pairs) == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert response_headers([(b"Content-Length", b"5")], drop=(b"content-length",)) == []
    assert response_headers([(b"Content-Length", b"5")]) == [(b"content-length", b"5")]


KEY = (b"authorization", b"Bearer client-key")


@pytest.mark.parametrize("value", [b"Bearer ours", b"bearer  ours ", b"ours"])
def test_spillways_own_keys_never_leave(value: bytes) -> None:
    assert upstream([(b"authorization", value), (b"x-api-key", b"ours"), KEY], own=("ours",)) == [KEY]


@pytest.mark.parametrize(
    "name",
    [
        *(b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cf-access-token", b"x-auth-token"),
        *(b"ocp-apim-subscription-key", b"x-auth-key", b"x-jwt", b"cookie"),
    ],
)
def test_a_backend_with_a_key_of_its_own_sees_no_credential_of_the_clients(name: bytes) -> None:
    assert upstream([(name, b"k")], api_key="theirs") == [(b"authorization", b"Bearer theirs")]
    assert upstream([(name, b"k")]) == [(name, b"k")]


def test_what_is_for_spillway_alone_stays() -> None:
    names = (b"origin", b"x-http-method-override", b"access-control-request-method", b"expect", b"x-conversation-id")
    told = [*((name, b"x") for name in names), (b"content-encoding", b"gzip"), (b"accept", b"*")]
    passing = request_headers(told, authorization=None, proxy_keys=ProxyKeys(), drop={b"content-encoding"})
    assert passing == [(b"accept", b"*")]


@pytest.mark.parametrize("name", [b"Access-Control-Allow-Origin", b"access-control-expose-headers"])
def test_a_backend_does_not_say_which_pages_may_read_an_answer(name: bytes) -> None:
    assert response_headers([(name, b"*"), (b"vary", b"Origin")]) == [(b"vary", b"Origin")]


def test_a_client_can_not_have_the_backends_own_key_left_out() -> None:
    told = [(b"connection", b"authorization"), KEY]
    assert upstream(told, api_key="theirs") == [(b"authorization", b"Bearer theirs")]
