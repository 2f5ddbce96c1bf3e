from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.jsontext import dumps, loads
from proxy.wire.splice import ask_usage

ASKED = b'"stream_options":{"include_usage":true}'
space = st.text(st.sampled_from(" \t\r\n"), max_size=3).map(str.encode)
bodies = st.dictionaries(
    st.text(), st.none() | st.integers(-9, 9) | st.text() | st.lists(st.text()), max_size=4
)


@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), space, bodies, space, space)
def test_every_other_byte_stays(
    mark: bytes, before: bytes, body: dict[str, Any], inside: bytes, after: bytes
) -> None:
    body.pop("stream_options", None)
    raw = mark + before + b"{" + inside + dumps(body)[1:] + after
    asked = ask_usage(raw)
    at = asked.index(ASKED)
    comma = 1 if body else 0
    assert asked[:at] + asked[at + len(ASKED) + comma :] == raw
    assert loads(asked) == {**body, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b'"{"', b"  "])
def test_what_is_no_object_stays_as_it_is(raw: bytes) -> None:
    assert ask_usage(raw) == raw
