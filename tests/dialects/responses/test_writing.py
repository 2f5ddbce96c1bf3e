from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import Managed, Request
from proxy.dialects.responses.writing import ResponsesWriter, usage_of
from tests.dialects.streams import SAID, all_of, calling, chunk, events, failure, usage

WHO = Identity("chatcmpl-1", 7, "m")


def writer(**asked: Any) -> ResponsesWriter:
    return ResponsesWriter(Request(body={}, model="asked", form=asked), "0a1b", Managed())


def response_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last event says; the others have to be numbered, in order, and to come to the same."""
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    created, in_progress, *middle, last = found
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    response: dict[str, Any] = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["id"] == created["response"]["id"]
    items: list[dict[str, Any]] = []
    said: dict[int, str] = {}
    done: set[int] = set()
    for event in middle:
        kind, index = event["type"].removeprefix("response."), event["output_index"]
        assert index not in done
        if kind == "output_item.added":
            assert index == len(items)
            items.append(event["item"])
            said[index] = ""
        elif kind == "output_item.done":
            assert event["item"]["id"] == items[index]["id"]
            items[index] = event["item"]
            done.add(index)
        else:
            assert event["item_id"] == items[index]["id"]
            if kind.endswith(".delta"):
                said[index] += event["delta"]
            elif kind in ("output_text.done", "function_call_arguments.done"):
                assert said[index] == (event.get("text") or event.get("arguments"))
    assert done == set(range(len(items)))
    assert response["output"] == items
    return response


def written(to: ResponsesWriter, *pieces: Piece) -> list[dict[str, Any]]:
    return events(b"".join(to.relay(piece, None, role_sent=True) for piece in pieces) + to.end())


def _text(item: dict[str, Any], field: str) -> str:
    return "".join(part["text"] for part in item[field])


@given(SAID, st.integers(0, 3))
def test_whatever_is_said_is_said_once_and_in_order(said: list[dict[str, Any]], calls: int) -> None:
    to = writer()
    pieces = [chunk(delta) for delta in (*said, *calling(calls))]
    response = response_of(written(to, *pieces, chunk({}, "tool_calls" if calls else "stop")))
    output = response["output"]
    texts = [_text(item, "content") for item in output if item["type"] == "message"]
    thoughts = [_text(item, "summary") for item in output if item["type"] == "reasoning"]
    assert "".join(texts) == all_of(said, "content")
    assert "".join(thoughts) == all_of(said, "reasoning_content")
    made = [item for item in output if item["type"] == "function_call"]
    assert [(call["call_id"], call["name"], json.loads(call["arguments"])) for call in made] == [
        (f"call_{index}", "f", {"a": index}) for index in range(calls)
    ]
    assert (response["status"], response["id"], response["model"]) == ("completed", "resp_0a1b", "m")


def test_the_end_counts_and_tells_why() -> None:
    counted = usage(prompt_tokens=12, completion_tokens=3, prompt_tokens_details={"cached_tokens": 8})
    response = response_of(written(writer(), chunk({"content": "Well."}), chunk({}, "length"), counted))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 8
    assert response["usage"]["total_tokens"] == 15


def test_a_response_repeats_its_request() -> None:
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "tools": [{"type": "local_shell"}],
    }
    response = response_of(written(writer(**asked), chunk({"content": "Well."})))
    assert {name: response[name] for name in asked} == asked
    assert (response["truncation"], response["text"]) == ("disabled", {"format": {"type": "text"}})


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "item"),
    [
        ({"type": "custom", "name": "p"}, "p", '{"input": "a\\nb"}', {"type": "custom_tool_call", "input": "a\nb"}),
        ({"type": "custom", "name": "p"}, "p", "bare words", {"type": "custom_tool_call", "input": "bare words"}),
    ],
)
def test_calls_come_back_as_the_tools_that_were_offered(
    tool: dict[str, Any], name: str, arguments: str, item: dict[str, Any]
) -> None:
    to = writer(tools=[tool])
    said = to.insert(Piece(calls=(CallPart(name, arguments, id="c"),), choice=True), WHO) + to.end()
    (call,) = response_of(events(said))["output"]
    assert {field: call[field] for field in item} == item
    assert call["call_id"] == "c"


def test_what_spillway_says_itself_fits_in() -> None:
    to = writer()
    said = [
        to.insert(Piece(comment="spillway"), WHO),
        to.insert(Piece(role=True), WHO),
        to.relay(chunk({"content": "one"}), WHO, role_sent=True),
        to.part(chunk({"content": " two"}, "length"), WHO, role_sent=True),
        to.insert(Piece(finish="stop"), WHO),
        to.insert(Piece(trailer=True, usage={"prompt_tokens": 5, "completion_tokens": 2, "spillway": {"a": 1}}), WHO),
        to.end(),
    ]
    assert said[0] == b": spillway\n\n"
    response = response_of(events(b"".join(said)))
    assert _text(response["output"][0], "content") == "one two"
    assert response["usage"]["spillway"] == {"a": 1}
    assert writer().insert(Piece(event={"type": "status"}), WHO) == b""


@pytest.mark.parametrize(("code", "told"), [("context_length_exceeded",) * 2, (500, "server_error")])
def test_nothing_comes_after_an_error_or_an_end(code: Any, told: str) -> None:
    to = writer()
    said = to.relay(chunk({"content": "one"}), None, role_sent=False)
    said += to.relay(failure(message="broken", code=code), None, role_sent=True)
    *_, failed = events(said)
    assert failed["response"]["error"] == {"code": told, "message": "broken"}
    assert failed["response"]["status"] == "failed"
    assert to.end() == to.error({"error": {"message": "again"}}) == to.insert(Piece(text="x"), WHO) == b""


def test_counts_that_make_no_sense_are_none() -> None:
    assert usage_of({"prompt_tokens": "x"})["total_tokens"] == 0
