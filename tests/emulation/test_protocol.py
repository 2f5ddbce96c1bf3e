from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.emulation import CallScanner, Malformed, Offer, complaint, offer_of, protocol
from proxy.emulation.protocol import rule
from tests.emulation.outputs import BODY, offer

TEXT = """\
# Tools

To call a tool, write exactly this and stop:
<tool_call>
{"name": "NAME", "arguments": {"PARAMETER": VALUE}}
</tool_call>
Arguments are strict JSON. For several calls, write one such block after the other. Results come in the next message as \
<tool_result tool_name='NAME'>...</tool_result>: never write one yourself. If no tool is needed, answer in plain text.

Tools (? marks optional parameters):
- get_weather(city: string, days?: integer, unit?: "celsius" | "fahrenheit", hourly?: boolean, height?: number | null)\
: Get the weather of a city.
  city: Name of the city
- write_file(path: string, content: string): Write a file.
- search(query?: string, tags?: string[], filter?: object)
- now(): Tell the time."""


def one(parameters: Any, **more: Any) -> str:
    found = offer_of({"tools": [{"function": {"name": "f", "parameters": parameters, **more}}]})
    assert found is not None
    return protocol(found).partition("parameters):\n")[2]


def of(schema: Any, **more: Any) -> str:
    return one({"type": "object", "properties": {"x": schema}, "required": ["x"], **more})


def test_the_protocol() -> None:
    assert protocol(offer()) == TEXT
    assert protocol(offer()) == protocol(offer())


NAMED = {"type": "function", "function": {"name": "now"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": n}} for n in ("search", "write_file", "fly")]},
}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"tool_choice": "none"}, "[For this answer: do not call a tool.]"),
        ({"tool_choice": "none", "parallel_tool_calls": False}, "[For this answer: do not call a tool.]"),
        ({"tool_choice": "required"}, "[For this answer: you must call a tool.]"),
        ({"tool_choice": NAMED}, "[For this answer: you must call now.]"),
        ({"tool_choice": ALLOWED}, "[For this answer: call none but write_file, search.]"),
        ({"parallel_tool_calls": False}, "[For this answer: write at most one call.]"),
        (
            {"parallel_tool_calls": False, "tool_choice": "required"},
            "[For this answer: you must call a tool; write at most one call.]",
        ),
    ],
)
def test_what_holds_for_one_answer_is_told_apart(fields: dict[str, Any], told: str) -> None:
    found = offer(**fields)
    assert rule(found) == told
    assert protocol(found) == TEXT


def test_without_tools_nothing_is_told() -> None:
    nothing = Offer({}, "none")
    assert (protocol(nothing), rule(nothing)) == ("", "")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": "a"}, '"a"'),
        ({"type": "integer", "default": 3}, "integer = 3"),
        ({"type": "string", "default": "x" * 100}, "string"),
        ({"type": "array", "items": {"type": "number"}}, "number[]"),
        ({"type": "array", "items": {"enum": [1, 2]}}, "(1 | 2)[]"),
        ({"type": "array"}, "array"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "{a?: string}"),
        ({"type": "object"}, "object"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string | string[]"),
        ({"$ref": "#/$defs/d"}, "boolean"),
        ({"$ref": "http://x/y"}, "any"),
        ({"$ref": "#/$defs/loop"}, "any"),
        ({}, "any"),
        (True, "any"),
        ({"type": 5}, "any"),
    ],
)
def test_types(schema: Any, told: str) -> None:
    defs = {"d": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}
    assert of(schema, **{"$defs": defs}) == f"- f(x: {told})"


def test_what_is_said_of_parameters_is_told_once_each() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string", "description": "The\n old text."}}}
    told = of({"type": "array", "description": "Edits.", "items": inner})
    assert told == "- f(x: {a?: string}[])\n  x: Edits.\n  x[].a: The old text."


def test_schemas_that_multiply_are_bounded() -> None:
    levels = {f"l{n}": {"properties": {k: {"$ref": f"#/$defs/l{n + 1}"} for k in "abcdefgh"}} for n in range(9)}
    assert len(of({"$ref": "#/$defs/l0"}, **{"$defs": levels})) < 20_000
    own = {"properties": {"me": {"$ref": "#"}, "also": {"$ref": "#"}}}
    assert len(one(own)) < 20_000


@given(
    st.recursive(
        st.text(max_size=3) | st.integers() | st.none(),
        lambda s: (
            st.lists(s, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "properties", "items", "required", "enum", "$ref", "anyOf", "x"]), s
            )
        ),
        max_leaves=10,
    )
)
def test_any_schema_is_told(schema: Any) -> None:
    assert one(schema).startswith("- f(")


def agent_tools() -> list[dict[str, Any]]:
    """Tools as coding agents send them: a dozen, each with a few parameters that are explained."""
    parameters = {
        name: {"type": kind, "description": f"The {name} to use, relative to the root of the project"}
        for name, kind in {"path": "string", "pattern": "string", "limit": "integer", "force": "boolean"}.items()
    }
    schema = {"type": "object", "properties": parameters, "required": ["path"], "additionalProperties": False}
    return [
        {"type": "function", "function": {"name": f"tool_{n}", "description": "Do a thing well.", "parameters": schema}}
        for n in range(12)
    ]


def test_it_is_shorter_than_the_schemas() -> None:
    tools = agent_tools()
    found = offer_of({"tools": tools})
    assert found is not None
    assert len(protocol(found)) < 0.75 * len(dumps(tools))
    assert len(protocol(offer())) < 1.3 * len(dumps(BODY["tools"]))


def test_a_model_that_repeats_the_protocol_calls_nothing() -> None:
    found: Offer = offer()
    scanner = CallScanner(found)
    pieces = [*scanner.feed(TEXT), *scanner.close()]
    assert [type(piece).__name__ for piece in pieces] == ["Text"] * len(pieces)


def test_the_complaint_says_each_reason_once_and_shows_the_form() -> None:
    wrong = [Malformed("x", "bare", "a"), Malformed("y", "bare", "a"), Malformed("z", "bare", "cut")]
    text = complaint(wrong)
    assert "made: a; it was cut off before its end. Write it again" in text
    assert "<tool_call>" in text
    assert len(complaint([Malformed("x", "bare", "y" * 5000)] * 9)) < 1000
    scanner = CallScanner(offer())
    assert all(not isinstance(piece, Malformed) for piece in [*scanner.feed(text), *scanner.close()])
