from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.dialects.chat import ChatReader
from proxy.dialects.chat.reading import is_privileged, unprivileged
from tests.stream.support import chunk, odd_chunks

PRIVILEGED: list[dict[str, Any]] = [
    {"event": {"type": "execute"}},
    {"event": None},
    {"selected_model_id": "m"},
    {"type": "response.output_text.delta"},
]


@pytest.mark.parametrize("fields", PRIVILEGED)
def test_privileged_fields_are_taken_out_and_nothing_else(fields: dict[str, Any]) -> None:
    assert unprivileged(chunk({"content": "a"}, **fields)) == chunk({"content": "a"})
    assert unprivileged({**fields, "x": 1}) == {}, "nothing is left that a client could use"
    assert unprivileged({**fields, "error": "x"}) == {"error": "x"}


@given(odd_chunks())
def test_what_is_left_is_not_privileged(value: dict[str, Any]) -> None:
    clean = unprivileged(value)
    assert not is_privileged(clean)
    assert (clean is value) == (not is_privileged(value))


def test_other_types_and_inner_events_are_nobodys_business() -> None:
    for value in ({"type": "error"}, {"type": 5}, {"choices": [{"event": 1}]}, {}):
        assert unprivileged(value) is value


@pytest.mark.parametrize(
    ("frame", "passes"),
    [
        (b'data: {"a":1}\ndata: {"event":1}\n\n', False),
        (b'data: [\r\ndata:{"type":"response.x"}\r\ndata: ]\r\n\r\n', False),
        (b'data: {"text":"data:"}\n\n', True),
    ],
)
def test_one_line_of_several_counts_alone(frame: bytes, passes: bool) -> None:
    assert ChatReader().read(frame).frame == (frame if passes else b"")
