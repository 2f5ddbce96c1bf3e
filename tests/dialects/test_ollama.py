"""Requests of Ollama's `/api/chat`, and its errors."""

import json
from typing import Any

import pytest

from proxy.core.errors import BadRequest, ModelNotFound, NotManaged
from proxy.core.request import Request
from proxy.dialects.ollama import read
from tests.dialects.streams import OLLAMA

HELLO = [{"role": "user", "content": "hello"}]


def chatting(messages: Any = HELLO, **fields: Any) -> Request:
    return read(json.dumps({"model": "m", "messages": messages} | fields).encode())


def test_calls_and_results_find_each_other_without_ids() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {"a": 1}}}

    made = chatting(
        [
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call("f"), call("g")]},
            {"role": "tool", "tool_name": "g", "content": "of g"},
            {"role": "tool", "content": "of f"},
            {"role": "tool", "content": "of nobody"},
            {"role": "assistant", "tool_calls": [{"id": "own", "function": {"name": "f", "arguments": "{}"}}, 4]},
            {"role": "tool", "tool_call_id": "own", "content": "of own"},
        ]
    ).messages
    assert made[0]["reasoning_content"] == "Hm."
    assert [(each["id"], each["function"]["arguments"]) for each in made[0]["tool_calls"]] == [
        ("call_0", '{"a":1}'),
        ("call_1", '{"a":1}'),
    ]
    ids = [message["tool_call_id"] for message in made if message["role"] == "tool"]
    assert ids == ["call_1", "call_0", "", "own"]


def test_what_is_malformed_is_refused() -> None:
    with pytest.raises(NotManaged):
        chatting([])
    for messages in ("x", [4], [{"role": "boss"}]):
        with pytest.raises(BadRequest):
            chatting(messages)
    with pytest.raises(BadRequest):
        chatting(model=5)


def test_errors_are_told_in_a_word() -> None:
    dialect = OLLAMA
    assert dialect.refusal(ModelNotFound("No such model.")) == {"error": "No such model."}
    assert json.loads(dialect.refused(b'{"error": {"message": "no"}}')) == {"error": "no"}
    assert dialect.refused(b"plain") == b"plain"
