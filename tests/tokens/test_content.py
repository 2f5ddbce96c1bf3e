from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.tokens.content import Content, read_message, schema_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(
    [
        *("role", "content", "name", "tool_calls", "function_call", "reasoning_content", "reasoning", "refusal"),
        *("reasoning_details", "type", "text", "image_url", "function", "arguments", "file", "input_audio"),
    ]
)  # fmt: skip


def texts(message: Any) -> list[str]:
    return read_message(message).texts


def test_plain_messages() -> None:
    assert texts({"role": "user", "content": "hi"}) == ["hi"]
    assert texts({"role": "user", "content": "hi", "name": "anna", "id": "x"}) == ["hi", "anna"]
    assert texts({"role": "assistant", "content": None}) == []


def test_parts_of_all_kinds() -> None:
    found = read_message(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "input_text", "text": "here"},
                {"type": "refusal", "refusal": "no"},
                "bare",
                {"text": "untyped"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "image", "source": {"data": "!!"}},
                {"type": "input_audio", "input_audio": {"data": "A" * 40_000, "format": "wav"}},
                {"type": "thinking", "thinking": "hm"},
            ],
        }
    )
    assert found == Content(["look", "here", "no", "bare", "untyped"], ["hm"], images=[None, None], attachments=[32])


def test_an_image_is_never_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    found = read_message({"role": "user", "content": [part]})
    assert found == Content(images=[None])


def test_a_blob_in_an_unknown_part_is_an_attachment() -> None:
    found = read_message({"role": "user", "content": [{"type": "x", "y": {"z": "A" * 300_000, "w": "words"}}]})
    assert found.attachments == [232]
    assert sum(map(len, found.texts)) < 60
    assert "words" in found.texts[0]


def test_calls_count_with_name_and_arguments() -> None:
    found = read_message(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": 2}}},
                {"id": "3", "type": "custom", "custom": {"name": "h", "input": "text"}},
            ],
        }
    )
    assert found.calls == 3
    assert found.texts == ["", "f", '{"a": 1}', "g", '{"b":2}', "h", "text"]
    assert texts({"function_call": {"name": "f", "arguments": "{}"}}) == ["f", "{}"]


def test_reasoning_is_kept_apart() -> None:
    message = {"content": "a", "reasoning_content": "b", "reasoning_details": [{"text": "c"}, {"data": "d"}, 1]}
    found = read_message(message)
    assert (found.texts, found.reasoning) == (["a"], ["b", "c"])


def test_messages_that_are_none() -> None:
    assert texts(None) == []
    assert texts(5) == ["5"]
    assert texts("bare") == ["bare"]
    assert texts([{"a": 1}]) == ['[{"a":1}]']
    assert read_message({"tool_calls": [None, 5, {"function": None}]}).calls == 3


@given(JSON | st.dictionaries(KEYS, JSON, max_size=6))
def test_no_json_makes_it_raise(message: Any) -> None:
    read_message(message)


def test_too_deep_is_refused_in_words() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRequest, match="nested too deeply"):
        read_message({"role": "user", "content": deep})


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        (None, None), ("json", None), ({"type": "json_object"}, None), ({"schema": {"a": 1}}, {"a": 1}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, {"name": "n"}),
    ],
)  # fmt: skip
def test_the_schema_of_structured_output(asked: Any, schema: Any) -> None:
    assert schema_of({"response_format": asked}) == schema
