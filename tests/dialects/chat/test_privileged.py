from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.dialects.chat.privileged import is_privileged, smuggles, unprivileged
from tests.answer.support import chunk, odd_chunks

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


def test_one_line_of_several_counts_alone() -> None:
    assert smuggles(b'data: {"a":1}\ndata: {"event":1}\n\n')
    assert smuggles(b'data: [\r\ndata:{"type":"response.x"}\r\ndata: ]\r\n\r\n')
    assert not smuggles(b'data: {"event":1}\n\n'), "a line of its own is judged as a chunk"
    assert not smuggles(b'data: {"a":\ndata: {"event":1}}\n\n')
    assert not smuggles(b"data: a\ndata: b\n\n")
    assert not smuggles(b'data: {"text":"data:"}\n\n')
