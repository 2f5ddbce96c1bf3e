from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import Managed, Request
from proxy.dialects.chat.reading import read_completion, read_frame
from proxy.dialects.messages.writing import MessagesWriter, error_body, usage_of
from tests.dialects.streams import SAID, all_of, calling, chunk, events, failure, usage

WHO = Identity("chatcmpl-1", 7, "m")


def message_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What an SDK makes of the events, which have to be in the order in which it expects them."""
    rest: Iterator[dict[str, Any]] = (event for event in found if event["type"] != "ping")
    opened = next(rest)
    assert opened["type"] == "message_start"
    message: dict[str, Any] = opened["message"]
    event = next(rest)
    while event["type"] == "content_block_start":
        block, index = event["content_block"], len(message["content"])
        assert event["index"] == index
        written = ""
        while (event := next(rest))["type"] == "content_block_delta":
            assert event["index"] == index
            kind, (name, said) = event["delta"]["type"], list(event["delta"].items())[1]
            if kind == "input_json_delta":
                assert block["type"] == "tool_use"
                written += said
            else:
                assert kind == f"{block['type']}_delta"
                block[name] += said
        assert event == {"type": "content_block_stop", "index": index}
        message["content"].append({**block, "input": json.loads(written or "{}")} if written else block)
        event = next(rest)
    assert event["type"] == "message_delta"
    message.update(event["delta"], usage=event["usage"])
    assert next(rest)["type"] == "message_stop"
    assert list(rest) == []
    return message


def written(*pieces: Piece) -> list[dict[str, Any]]:
    writer = MessagesWriter(Request(body={}, model="asked", form={}), "1", Managed())
    return events(b"".join(writer.relay(piece, None, role_sent=True) for piece in pieces) + writer.end())


@given(SAID, st.integers(0, 3))
def test_whatever_is_said_in_whatever_order_is_said_once_and_in_order(said: list[dict[str, Any]], calls: int) -> None:
    pieces = [chunk(delta) for delta in (*said, *calling(calls))]
    message = message_of(written(*pieces, chunk({}, "tool_calls" if calls else "stop")))
    for field, kind, name in (("content", "text", "text"), ("reasoning_content", "thinking", "thinking")):
        assert all_of(said, field) == "".join(block[name] for block in message["content"] if block["type"] == kind)
    uses = [block for block in message["content"] if block["type"] == "tool_use"]
    assert [(use["id"], use["name"], use["input"]) for use in uses] == [
        (f"call_{index}", "f", {"a": index}) for index in range(calls)
    ]
    assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
    assert (message["id"], message["model"], message["role"]) == ("msg_1", "m", "assistant")


def test_the_end_waits_for_the_usage() -> None:
    counts = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    trailer = usage(**counts)
    message = message_of(written(chunk({"content": "Well."}), chunk({}, "length"), trailer))
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["input_tokens"] == 4
    assert message["usage"]["cache_read_input_tokens"] == 8
    assert message["usage"]["output_tokens"] == 3


def test_a_call_that_comes_whole_and_unnumbered_is_one_block() -> None:
    writer = MessagesWriter(Request(body={}, model="asked", form={}), "1", Managed())
    calls = (CallPart("f", '{"a":1}', id="c1"), CallPart("g", "", id="c2"))
    said = writer.insert(Piece(calls=calls, choice=True), WHO) + writer.end()
    uses = message_of(events(said))["content"]
    assert [(use["name"], use["input"], use["id"]) for use in uses] == [("f", {"a": 1}, "c1"), ("g", {}, "c2")]


def test_what_spillway_says_itself_fits_in() -> None:
    writer = MessagesWriter(Request(body={}, model="asked", form={}), "1", Managed())
    said = [
        writer.insert(Piece(comment="spillway"), WHO),
        writer.insert(Piece(role=True), WHO),
        writer.relay(chunk({"content": "one"}), WHO, role_sent=True),
        writer.part(chunk({"content": " two"}, "length"), WHO, role_sent=True),
        writer.insert(Piece(finish="stop"), WHO),
        writer.insert(Piece(trailer=True, usage={"prompt_tokens": 5, "completion_tokens": 2}), WHO),
        writer.end(),
    ]
    assert said[0] == b": spillway\n\n"
    message = message_of(events(b"".join(said)))
    assert message["content"] == [{"type": "text", "text": "one two", "citations": None}]
    assert message["stop_reason"] == "end_turn"


def test_nothing_comes_after_an_error_or_an_end() -> None:
    writer = MessagesWriter(Request(body={}, model="asked", form={}), "1", Managed())
    said = writer.relay(chunk({"content": "one"}), None, role_sent=False)
    said += writer.relay(failure(message="broken", code=500), None, role_sent=True)
    *_, error = events(said)
    assert error == {"type": "error", "error": {"type": "api_error", "message": "broken"}}
    assert writer.end() == writer.error({"error": {"message": "again"}}) == b""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "x", "type": "server_error"}, "api_error"),
        ({"message": "x", "code": 429}, "rate_limit_error"),
        ({"message": "x", "code": 401}, "authentication_error"),
        ({"message": "x", "code": 418}, "invalid_request_error"),
        ("broken", "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: Any, kind: str) -> None:
    assert error_body(error)["error"]["type"] == kind


def test_counts_that_make_no_sense_are_none() -> None:
    told = usage_of({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}, "completion_tokens": "x"})
    assert (told["input_tokens"], told["cache_read_input_tokens"], told["output_tokens"]) == (0, 3, 0)


def test_thinking_is_counted_where_the_backend_counts_it() -> None:
    counted = {"prompt_tokens": 5, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert usage_of(counted)["output_tokens_details"] == {"thinking_tokens": 4}
    assert usage_of({**counted, "completion_tokens_details": 3})["output_tokens_details"] is None


def test_a_stop_sequence_is_told_where_the_backend_tells_it() -> None:
    choice = {"index": 0, "finish_reason": "stop", "stop_reason": "END"}
    head = {"id": "chatcmpl-1", "created": 7, "model": "m"}
    ended = read_frame(sse.encode({**head, "choices": [{**choice, "delta": {}}]}))
    message = message_of(written(chunk({"content": "Hi."}), ended))
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    body = {**head, "choices": [{**choice, "message": {"role": "assistant", "content": "Hi."}}]}
    whole = read_completion(json.dumps(body).encode())
    assert whole is not None
    told = json.loads(MessagesWriter(Request(body={}, model="asked", form={}), "1", Managed()).body(whole, (), None))
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    token = read_frame(sse.encode({**head, "choices": [{**choice, "delta": {}, "stop_reason": 128001}]}))
    message = message_of(written(chunk({"content": "Hi."}), token))
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
