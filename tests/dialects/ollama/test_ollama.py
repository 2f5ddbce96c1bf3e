from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest, ModelNotFound, NotManaged
from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import Managed, Request
from proxy.dialects import DIALECTS
from proxy.dialects.ollama import OllamaWriter, read
from tests.dialects.streams import SAID, all_of, calling, chunk, failure, usage

WHO = Identity("x", 7, "m")
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


def lines(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.splitlines()]


@given(SAID, st.integers(0, 3))
def test_whatever_is_said_is_said_once_and_in_order(said: list[dict[str, Any]], calls: int) -> None:
    to = OllamaWriter(Request(body={}, model="asked"), "", Managed())
    pieces = [*map(chunk, said), *map(chunk, calling(calls)), chunk({}, "tool_calls" if calls else "length")]
    counted = usage(prompt_tokens=5, completion_tokens=2)
    found = lines(b"".join(to.relay(each, None, role_sent=True) for each in (*pieces, counted)) + to.end())
    *_, last = found
    assert [line["done"] for line in found] == [*(False for _ in found[1:]), True]
    assert "".join(line["message"]["content"] for line in found) == all_of(said, "content")
    assert "".join(line["message"].get("thinking", "") for line in found) == all_of(said, "reasoning_content")
    made = [call for line in found for call in line["message"].get("tool_calls", ())]
    assert [(call["id"], call["function"]["arguments"]) for call in made] == [
        (f"call_{index}", {"a": index}) for index in range(calls)
    ]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop" if calls else "length", 5, 2)
    assert {line["model"] for line in found} == {"asked"}
    assert last["created_at"] == ("1970-01-01T00:00:07Z")


def test_what_spillway_says_itself_are_lines_too() -> None:
    to = OllamaWriter(Request(body={}, model="m"), "", Managed())
    said = [
        to.insert(Piece(comment="spillway"), WHO),
        to.part(chunk({"content": "two", "reasoning_content": "Hm."}, "length"), WHO, role_sent=True),
        to.insert(Piece(calls=(CallPart("f", "{}"),)), WHO),
        to.insert(Piece(finish="stop", usage={"spillway": {"a": 1}}), WHO),
        to.end(),
    ]
    heartbeat, thought, text, *_, last = lines(b"".join(said))
    assert (heartbeat["message"]["content"], heartbeat["done"]) == ("", False)
    assert (thought["message"]["thinking"], text["message"]["content"]) == ("Hm.", "two")
    assert (last["message"]["content"], last["done"], last["spillway"]) == ("", True, {"a": 1})


def test_nothing_comes_after_an_error() -> None:
    to = OllamaWriter(Request(body={}, model="m"), "", Managed())
    assert lines(to.relay(failure(message="broken"), None, role_sent=True)) == [{"error": "broken"}]
    assert to.end() == to.error({"error": "again"}) == to.insert(Piece(text="x"), WHO) == b""


def test_errors_are_told_in_a_word() -> None:
    dialect = DIALECTS["/api/chat"]
    assert dialect.refusal(ModelNotFound("No such model.")) == {"error": "No such model."}
    assert json.loads(dialect.refused(b'{"error": {"message": "no"}}')) == {"error": "no"}
    assert dialect.refused(b"plain") == b"plain"
