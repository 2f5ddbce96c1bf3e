from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.jsontext import dumps, loads

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(values)
def test_what_is_written_is_read(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(values)
def test_what_others_write_is_read(value: Any) -> None:
    assert loads(json.dumps(value)) == loads(json.dumps(value).encode()) == value


def test_half_an_emoji_survives() -> None:
    body = b'{"content":"half an emoji \\ud83d"}'
    assert loads(body) == {"content": "half an emoji \ud83d"}
    assert loads(dumps(loads(body))) == loads(body)


def test_numbers_that_json_has_not_are_read() -> None:
    assert math.isnan(loads(b'{"a":NaN}')["a"])


def test_bytes_are_utf_8() -> None:
    assert loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        with pytest.raises(ValueError, match=r".*"):
            loads('{"a":1}'.encode(encoding))
    with pytest.raises(ValueError, match="decode"):
        loads(b'{"a":"\xff"}')


@pytest.mark.parametrize("data", [b"", b"{", b"[DONE]", b'{"a":1}x', b"[" * 100_000, b'{"a":' * 5000])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        loads(data)


def test_nesting_is_written_or_refused() -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    assert loads(dumps(nested)) == nested
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="deeply"):
        dumps(nested)
    while nested:  # one by one, because freeing it at once would go as deep
        nested = nested[0]
