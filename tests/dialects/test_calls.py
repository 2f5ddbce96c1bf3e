"""Which pieces of a stream belong to one tool call, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core import sse
from proxy.core.dialect import Dialect
from proxy.core.request import Managed, Request
from proxy.dialects import DIALECTS
from tests.dialects.streams import called, chunk
from tests.dialects.test_streams import text_in

OTHERS = [dialect for path, dialect in DIALECTS.items() if path != "/v1/chat/completions"]
every = pytest.mark.parametrize("dialect", OTHERS, ids=lambda dialect: dialect.name)


def written(dialect: Dialect, deltas: list[dict[str, Any]]) -> bytes:
    """The stream of an answer that says this."""
    writer = dialect.writer(Request(body={}, model="asked", form={}), "0a1b", Managed())
    return b"".join(writer.relay(chunk(delta), None, role_sent=True) for delta in deltas) + writer.end()


def calls_in(dialect: Dialect, deltas: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls that a client is told of."""
    data = written(dialect, deltas)
    if dialect.name.startswith("ollama"):
        lines = map(json.loads, data.splitlines())
        listed = [call["function"] for line in lines for call in line["message"].get("tool_calls", ())]
        return [(call["name"], call["arguments"]) for call in listed]
    events = [json.loads(told) for told in map(sse.data_of, sse.frames(data)) if told]
    if dialect.name == "responses":
        listed = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
        return [(call["name"], json.loads(call["arguments"])) for call in listed]
    blocks = {
        each["index"]: each["content_block"].get("name") for each in events if each["type"] == "content_block_start"
    }
    arguments = dict.fromkeys(blocks, "")
    for each in events:
        if each["type"] == "content_block_delta":
            arguments[each["index"]] += each["delta"].get("partial_json", "")
    return [(name, json.loads(arguments[index])) for index, name in blocks.items() if name]


@every
def test_a_new_id_under_the_same_index_is_a_new_call(dialect: Dialect) -> None:
    told = calls_in(dialect, [called(0, "f", '{"a":1}', "c1"), called(0, "g", '{"b":2}', "c2")])
    assert told == [("f", {"a": 1}), ("g", {"b": 2})]


@every
def test_an_id_and_a_name_that_are_said_again_are_the_same_call(dialect: Dialect) -> None:
    pieces = [called(0, "f", '{"a"', "c1"), called(1, "g", '{"b"', "c2")]
    told = calls_in(dialect, [*pieces, called(0, "f", ":1}", "c1"), called(1, "g", ":2}", "c2")])
    assert told == [("f", {"a": 1}), ("g", {"b": 2})]


@every
def test_numbers_may_begin_anywhere_and_come_in_any_order(dialect: Dialect) -> None:
    told = calls_in(dialect, [called(7, "f", '{"a":1}', "c1"), called(3, "g", '{"b":2}', "c2")])
    assert told == [("f", {"a": 1}), ("g", {"b": 2})]


@every
def test_a_word_amid_a_call_tears_nothing_apart(dialect: Dialect) -> None:
    halves = [
        called(0, "f", '{"a"', "c1"),
        {"content": "Well."},
        {"reasoning_content": "Hm."},
        called(0, arguments=":1}"),
    ]
    told = calls_in(dialect, [*halves, {"content": " Yes."}, called(0), called(1, "g", '{"b":2}', "c2")])
    assert told == [("f", {"a": 1}), ("g", {"b": 2})]
    said = text_in(dialect, written(dialect, [*halves, {"content": " Yes."}]))
    assert said == "Well. Yes."


@every
def test_arguments_that_come_after_a_word_belong_to_their_call(dialect: Dialect) -> None:
    told = calls_in(dialect, [called(0, "f", "", "c1"), {"content": "Well."}, called(0, arguments='{"a":1}')])
    assert told == [("f", {"a": 1})]
