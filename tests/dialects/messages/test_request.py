from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.core.request import Request
from proxy.dialects.messages.request import read

HELLO = [{"role": "user", "content": "hello"}]


def asked(messages: Any = HELLO, **fields: Any) -> Request:
    return read(json.dumps({"model": "m", "max_tokens": 10, "messages": messages} | fields).encode())


def refused(messages: Any = HELLO, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        asked(messages, **fields)
    return caught.value


def test_a_plain_request() -> None:
    request = asked(system="Be brief.", temperature=0.5, top_k=4, stop_sequences=["\n"], stream=True, metadata={})
    assert request.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, *HELLO],
        "max_tokens": 10,
        "temperature": 0.5,
        "top_k": 4,
        "stop": ["\n"],
        "stream": True,
    }
    assert (request.model, request.stream, request.max_tokens, request.wants_usage) == ("m", True, 10, True)
    assert (request.structured, request.continues, request.raw) == (False, False, None)


def test_a_session_of_claude_code() -> None:
    """As version 2.1 sends it: a billing line, moving cache marks, reminders, a system message in the middle."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.7d4; cc_entrypoint=cli;"},
        {"type": "text", "text": "You are Claude Code.", **mark},
        {"type": "text", "text": "Follow the rules."},
    ]
    thinking = {"type": "thinking", "thinking": "Look first.", "signature": "abc"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.py"}], **mark}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>…</system-reminder>"}]},
        {"role": "system", "content": "Available agent types."},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
    ]
    body = asked(messages, system=system, thinking={"type": "adaptive"}, output_config={"effort": "high"}).body
    call = {"id": "toolu_1", "type": "function", "function": {"name": "Bash", "arguments": '{"command":"ls"}'}}
    assert body["messages"] == [
        {
            "role": "system",
            "content": "x-anthropic-billing-header: cc_version=2.1.197.7d4; cc_entrypoint=cli;\n\n"
            "You are Claude Code.\n\nFollow the rules.",
        },
        {
            "role": "user",
            "content": "<system-reminder>…</system-reminder>\n\n"
            "<system-reminder>\nAvailable agent types.\n</system-reminder>",
        },
        {"role": "assistant", "content": "I look.", "tool_calls": [call], "reasoning_content": "Look first."},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a.py"},
        {"role": "user", "content": "Go on."},
    ]
    assert "output_config" not in body


def test_the_mark_of_a_cache_is_no_part_of_a_message() -> None:
    block = {"type": "text", "text": "hello"}
    marked = [{"role": "user", "content": [{**block, "cache_control": {"type": "ephemeral"}}]}]
    assert asked([{"role": "user", "content": [block]}]).body == asked(marked).body


def test_a_result_is_an_error_also_for_a_model_that_is_told_only_its_text() -> None:
    def content(text: str, **fields: Any) -> str:
        result = {"type": "tool_result", "tool_use_id": "t", "content": text, **fields}
        told: str = asked([{"role": "user", "content": [result]}]).messages[0]["content"]
        return told

    assert content("no such file", is_error=True) == "Error: no such file"
    assert content("Error: no such file", is_error=True) == "Error: no such file"
    assert content("fine") == "fine"


def test_documents_and_search_results_are_read_to_the_model() -> None:
    blocks = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
        {"type": "search_result", "title": "S", "source": "s.de", "content": [{"type": "text", "text": "found"}]},
        {"type": "text", "text": "What is it?"},
    ]
    (message,) = asked([{"role": "user", "content": blocks}]).messages
    assert message["content"] == "T\nbody\ninner\nS\n\ns.de\nfound\nWhat is it?"
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}}
    (message,) = asked([{"role": "user", "content": [pdf]}]).messages
    assert message["content"][0]["file"]["file_data"] == "data:application/pdf;base64,QQ=="


def test_tools_and_the_choice_of_one() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}}
    choice = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    body = asked(tools=[tool, {"type": "web_search_20250305", "name": "web_search"}], tool_choice=choice).body
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["parallel_tool_calls"] is False
    assert asked(tools=[tool], tool_choice={"type": "any"}).body["tool_choice"] == "required"
    assert "tools" not in asked(tools=[]).body


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_format_is_one(field: str) -> None:
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "schema": schema}
    request = asked(**{field: {"format": form} if field == "output_config" else form})
    assert request.structured
    assert request.body["response_format"]["json_schema"]["schema"] == schema


def test_an_answer_that_the_client_began_is_to_be_gone_on_with() -> None:
    assert asked([*HELLO, {"role": "assistant", "content": "Well, "}]).continues


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": 5}, "`model`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"thread": {"type": "create"}}, "`thread`"),
        ({"messages": "hello"}, "`messages`"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "dance"}]}]}, "dance"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "base64"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ],
)
def test_what_can_not_be_done_is_said(fields: dict[str, Any], says: str) -> None:
    assert says in refused(**fields).message


_NAMES = ("type", "text", "content", "source", "role", "name", "input", "id", "title", "data", "is_error", "format")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=20,
)
_BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "document", "tool_use", "tool_result", "thinking", "search_result"])},
    optional=dict.fromkeys(_NAMES[1:], _JSON),
)


@pytest.mark.no_cover
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(_BLOCK) | _JSON}
        )
    ),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("system", "tools", "tool_choice", "output_config", "stream"), _JSON)
    ),
)
def test_anything_is_read_or_refused(messages: list[Any], fields: dict[str, Any]) -> None:
    try:
        request = asked(messages, **fields)
    except BadRequest:
        return
    assert all(isinstance(message["role"], str) for message in request.messages)


def test_a_reminder_in_the_middle_is_said_with_what_is_before_it() -> None:
    reminder = {"role": "system", "content": "Mind the list."}
    said = "<system-reminder>\nMind the list.\n</system-reminder>"
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "fine"}
    picture = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    assert asked([reminder, *HELLO]).messages[0] == reminder
    assert (
        asked([*HELLO, use, {"role": "user", "content": [result]}, reminder]).messages[-1]["content"]
        == f"fine\n\n{said}"
    )
    assert asked([{"role": "user", "content": [picture]}, reminder]).messages[0]["content"][1]["text"] == said
    assert asked([*HELLO, {"role": "assistant", "content": "a"}, reminder]).messages[-1] == {
        "role": "user",
        "content": said,
    }


def test_tools_may_be_added_on_the_way() -> None:
    added = {"type": "tool_definition", "definition": {"name": "late", "input_schema": {"type": "object"}}}
    changes = [
        {"type": "tool_addition", "tool": added},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "first"}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "first"}},
    ]
    messages = [*HELLO, {"role": "system", "content": changes}]
    request = asked(messages, tools=[{"name": "first", "input_schema": {"type": "object"}}])
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["late"]
    assert request.messages == HELLO
    back = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "first"}}
    again = asked(
        [*messages, *HELLO, {"role": "system", "content": [back]}],
        tools=[{"name": "first", "input_schema": {"type": "object"}}],
    )
    assert [tool["function"]["name"] for tool in again.body["tools"]] == ["first", "late"]
    assert (
        "tools"
        not in asked(
            [*HELLO, {"role": "system", "content": changes[2:]}], tools=[{"name": "first", "input_schema": {}}]
        ).body
    )
    assert asked([{"role": "user", "content": changes}, *HELLO]).body["tools"][0]["function"]["name"] == "late"
