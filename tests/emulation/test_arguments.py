"""Arguments of written calls: byte for byte where they are valid JSON, mended where not, bounded in depth."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.forms import Call
from tests.emulation.outputs import Malformed, offer, scanned


def written(arguments: str, before: str = "") -> tuple[Any, ...]:
    return scanned([f'<tool_call>{{{before}"name": "now", "arguments": {arguments}}}</tool_call>'])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(st.dictionaries(st.text(), values), st.booleans(), st.sampled_from([None, 0, 1]))
def test_valid_json_is_read_as_it_was_meant(value: dict[str, Any], ascii_only: bool, indent: int) -> None:
    written_by_model, text = (json.dumps(value, indent=indent, ensure_ascii=ascii_only), json.dumps(value, ensure_ascii=False))
    assert written(written_by_model) == (Call("now", text, "tool_call"),)
    assert written(json.dumps(written_by_model)) == (Call("now", text, "tool_call"),)
    array = f'<tool_call>[{{"tool": "now", "args": {text}, "x": {text}}}, {{"args": {{}}, "tool": "now"}}]</tool_call>'
    assert scanned([array]) == (Call("now", text, "tool_call"), Call("now", "{}", "tool_call"))


@pytest.mark.parametrize(
    ("before", "arguments", "read"),
    [
        ("", r'{"a": "\"arguments\": {}", "b" :  1.50}', r'{"a": "\"arguments\": {}", "b": 1.5}'),
        ('"type": "function", "id": "1", ', '{"arguments":{"a":1}}', '{"arguments": {"a": 1}}'),
        ("", '{"a": 1}, "input": {"a": 2}', '{"a": 1}'),
        ("", '{"a": 1}, "arguments": {"a":2}', '{"a": 2}'),
        ("", '{"a": 123456789012345678901234567890,}', '{"a": 123456789012345678901234567890}'),
        ("", r'{"a": "\ud83c"}', r'{"a": "\ud83c"}'),
        ("", r'"{\"a\": 1,}"', '{"a": 1}'),
    ],
)
def test_the_right_arguments_are_found(before: str, arguments: str, read: str) -> None:
    (call,) = written(arguments, before)
    assert (call.name, call.arguments) == ("now", read)


@pytest.mark.parametrize("text", ["[]", "1", "true", '"[1]"', '"{} {}"', '"["'])
def test_anything_but_an_object_is_refused(text: str) -> None:
    (wrong,) = written(text)
    assert isinstance(wrong, Malformed)


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> str:
        return '{"a": ' * levels + "1" + "}" * levels

    assert written(nested(60)) == (Call("now", nested(60), "tool_call"),)
    wide = json.dumps({"a": [{}] * 1000})
    assert written(wide) == (Call("now", wide, "tool_call"),)
    assert isinstance(written(nested(10_000))[0], Malformed)


def test_parameters_are_read_by_their_schema() -> None:
    properties = {
        "text": {"type": "string"}, "either": {"type": ["string", "integer"]}, "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    }  # fmt: skip
    function = {"name": "f", "parameters": {"properties": properties}}
    tools = offer(tools=[{"type": "function", "function": function}])
    texts = {"text": "\n12\n\n", "either": "5", "count": "\n 3 \n", "maybe": "None", "other": "1"}
    body = "".join(f"<parameter={name}>{text}</parameter>" for name, text in texts.items())
    read = r'{"text": "12\n", "either": "5", "count": 3, "maybe": null, "other": "1"}'
    (call,) = scanned([f"<function=f>{body}</function>"], of=tools)
    assert isinstance(call, Call)
    assert call.arguments == read
    (wrong,) = scanned(["<function=f><parameter=count>many</parameter></function>"], of=tools)
    assert isinstance(wrong, Malformed)
    assert "must be integer" in wrong.message
