"""Whose a request is, by what its headers say."""

import tracemalloc
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from proxy.api.access import credentials_tenant
from proxy.net.headers import Headers, response_headers

_OTHERS = st.tuples(st.sampled_from([b"host", b"accept", b"x-csrf-token", b"x-1"]), st.binary(max_size=3))
_CREDENTIALS = st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"api-key"]), st.binary(min_size=1, max_size=3))


@given(st.lists(_CREDENTIALS, max_size=3), st.lists(_OTHERS, max_size=90), st.randoms())
def test_whoever_sends_the_same_credentials_is_the_same(credentials: Headers, others: Headers, random: Random) -> None:
    headers = [*credentials, *others]
    random.shuffle(headers)
    assert credentials_tenant(headers) == credentials_tenant(credentials)
    assert credentials_tenant([*headers, (b"authorization", b"another")]) != credentials_tenant(headers)


def test_what_is_long_is_not_kept() -> None:
    """Whoever has no key, or a backend, could fill the memory with headers otherwise."""
    tracemalloc.start()
    try:
        for number in range(40):
            of = b"%d" % number
            response_headers([(of + b"n" * 50_000, b"1")])
            credentials_tenant([(b"authorization", of + b"x" * 50_000), (of + b"y" * 50_000 + b"-token", b"1")])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
