from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.codec import decode, encode
from tests.store.support import checkpoint, digest

# Nothing that was read from JSON has a longer integer: see `proxy.core.jsontext`.
_integers = st.integers(-(2**63), 2**64 - 1)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _integers | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.text(), _json, max_size=4), max_size=4), st.floats(0, 1e11), st.text())
def test_it_comes_back_as_it_was(messages: list[dict[str, Any]], created: float, scope: str) -> None:
    item = checkpoint(scope=scope, replacement=tuple(messages), created=created)
    assert decode(encode(item)) == item


def test_it_is_one_line() -> None:
    assert b"\n" not in encode(checkpoint(text="a\nb\r\nc"))


def test_it_is_refused_for_another_scope_or_digest() -> None:
    body = encode(checkpoint(1, scope="mine"))
    assert decode(body, "mine", digest(1)) is not None
    assert decode(body, "yours", digest(1)) is None
    assert decode(body, "mine", digest(2)) is None


@pytest.mark.parametrize(
    "change", [{"v": 2}, {"digest": "xyz"}, {"covered": None}, {"replacement": None}, {"created": "soon"}]
)
def test_what_it_does_not_know_is_nothing(change: dict[str, Any]) -> None:
    document = json.loads(encode(checkpoint()))
    assert decode(json.dumps(document | change).encode()) is None


@given(st.binary(max_size=50) | _json.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_nothing(body: bytes) -> None:
    assert decode(body) is None
