"""A field is found as a parser would find it, wherever it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fields import Field, text_field

NAMES = ("model", "name")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"', "\\", '\\"', "{", "}]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", '"', "\\"]), inner),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from([*NAMES, "input", "mod\\u0065l", '{"model"']), JSON)


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_it_is_what_a_parser_finds(value: dict[str, Any], indent: int | None, plain: bool) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=plain).encode()
    named = [name for name in NAMES if isinstance(value.get(name), str)]
    found = text_field(data, NAMES)
    if not named:
        assert found is None
        return
    assert found is not None
    assert (found.name, found.value) == (named[0], value[named[0]])
    assert json.loads(data[found.start : found.end]) == found.value


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"model":"a","model":"b"}', Field("model", "b", 21, 24)),
        (b'\xef\xbb\xbf \n{ "model" : "a" }', Field("model", "a", 17, 20)),
        (b'{"name":"n","model":"m"}', Field("model", "m", 20, 23)),
        (b'{"model":"m","name":"n"}', Field("model", "m", 9, 12)),
        (b'{"mod\\u0065l":"m"}', Field("model", "m", 14, 17)),
        (b'{"a":{"model":"inner"},"b":["model"],"c":"model"}', None),
        (b'{"model":5}', None),
        (b'["model","m"]', None),
        (b'{"model":"m', None),
        (b'{"model"', None),
        (b"{", None),
        (b"", None),
    ],
)
def test_where_it_stands(data: bytes, found: Field | None) -> None:
    assert text_field(data, NAMES) == found


def test_it_is_given_up_after_a_bounded_number_of_steps() -> None:
    last = b',"model":"m"}'
    assert text_field(b'{"a":[' + b'"",' * 1000 + b"0]" + last, NAMES) is not None
    for much in (b"[" * 1_100_000, b'"' + b'\\"' * 1_100_000 + b'"'):
        assert text_field(b'{"a":' + much + last, NAMES) is None
