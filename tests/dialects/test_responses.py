"""Requests of OpenAI's Responses."""

import json
from typing import Any

import pytest

from proxy.core.errors import ClientError
from proxy.core.request import Request
from proxy.dialects.responses.request import read

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


def asked(said: Any = "hello", **fields: Any) -> Request:
    request = read(json.dumps({"model": "m", "input": said} | fields).encode())
    if request.reading is None:
        return request
    flow = request.reading()
    try:
        next(flow)
        while True:
            flow.send(None)
    except StopIteration as stop:
        read_on: Request = stop.value
        return read_on


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_plain_request() -> None:
    request = asked(instructions="Be brief.", temperature=0.5, max_output_tokens=9, stream=True, store=False)
    assert request.body == {
        "model": "m",
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": 9,
    }
    assert (request.stream, request.max_tokens, request.wants_usage) == (True, 9, True)
    assert request.form["store"] is False


def test_a_session_of_codex() -> None:
    """As version 0.169 sends it: a developer's message, the environment, the task, calls and their outputs."""
    text = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    items = [
        {"type": "message", "id": "msg_1", "role": "developer", "content": text},
        {"type": "message", "role": "user", "content": text[:1]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "id": "fc_1", "name": "exec", "arguments": "{}", "call_id": "c1", "status": "completed"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "+a", "call_id": "c2"},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "patched"}]},
    ]
    body = asked(items, reasoning={"effort": "high", "summary": "auto"}, prompt_cache_key="x").body
    assert body["messages"] == [
        {"role": "system", "content": "one\ntwo"},
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("exec", "{}", "c1"), call("apply_patch", '{"input":"+a"}', "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "patched"},
    ]
    assert "reasoning_effort" not in body, "which backends have different words for"


def test_two_answers_in_a_row_are_two_messages() -> None:
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert [message["content"] for message in asked(said).messages] == ["a", "b"]


def test_reasoning_that_is_only_named_is_left_out() -> None:
    named = [{"type": "item_reference", "id": "rs_1"}, {"id": "rs_2"}]
    assert asked([*named, {"role": "user", "content": "go"}]).messages == [{"role": "user", "content": "go"}]


def test_a_picture_of_a_result_is_shown_behind_it() -> None:
    picture = {"type": "input_image", "image_url": "http://x/y.png"}
    made = asked(
        [
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "d"},
            {"type": "function_call_output", "call_id": "d", "output": [picture]},
        ]
    ).messages
    assert made[1]["content"].startswith("The result is the picture")
    assert made[2]["content"] == [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]


def test_parts_of_every_kind() -> None:
    parts = [
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"},
        {"type": "refusal", "refusal": "no"},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "input_image", "image_url": "u", "detail": "high"},
    ]
    (message,) = asked([{"role": "user", "content": parts}]).messages
    assert message["content"] == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
        {"type": "text", "text": "no"},
        parts[2],
        {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
    ]


def test_tools_and_the_choice_of_one() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    tools = [
        FUNCTION,
        {"type": "custom", "name": "p", "description": "d", "format": grammar},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ]
    body = asked(tools=tools, tool_choice={"type": "function", "name": "f"}).body
    functions = [tool["function"] for tool in body["tools"]]
    assert [function["name"] for function in functions] == ["f", "p", "n__f"]
    assert functions[0] == {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert "start: x" in functions[1]["parameters"]["properties"]["input"]["description"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": []}
    assert asked(tools=tools, tool_choice=allowed).body["tool_choice"] == "required"
    assert asked(tools=tools, tool_choice="none").body["tool_choice"] == "none"
    assert "tools" not in asked(tools=[]).body


def test_formats() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    request = asked(text={"format": form})
    assert request.structured
    assert request.body["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert asked(text={"format": {"type": "json_object"}}).body["response_format"] == {"type": "json_object"}
    assert not asked(text={"format": {"type": "text"}, "verbosity": "low"}).structured


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": 5}, "`model`"),
        ({"input": 4}, "`input`"),
        ({"input": [{"type": "dance"}]}, "dance"),
        ({"input": [{"role": "boss", "content": "x"}]}, "role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input_image"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "store: false"),
        ({"input": [{"id": "fc_1"}]}, "store: false"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "previous_response_id"),
        ({"previous_response_id": "r"}, "Previous response"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "demands g"),
    ],
)
def test_what_can_not_be_done_is_said(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ClientError) as caught:
        asked(**{"said": fields.get("input", "hello"), **{k: v for k, v in fields.items() if k != "input"}})
    assert says in caught.value.message


def test_tools_of_openais_servers_and_models_are_left_out_and_reported() -> None:
    request = asked(tools=[FUNCTION, {"type": "web_search"}, {"type": "local_shell"}])
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["f"]
    others = [{"type": "shell_call", "call_id": "c"}, {"type": "additional_tools", "tools": [FUNCTION]}]
    assert asked([*others, {"role": "user", "content": "go"}]).messages == [{"role": "user", "content": "go"}]
