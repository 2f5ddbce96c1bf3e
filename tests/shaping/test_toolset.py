"""The tool set: which tools tell what they do where not all have room, and that all can be called."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.shaping.diet import tool_set
from proxy.shaping.shape import TOOLS_FIRST
from tests.agent_prompts import TOOLS

NAMES = [tool["function"]["name"] for tool in TOOLS]


def telling(tools: Any) -> set[str]:
    return {tool["function"]["name"] for tool in tools if "description" in tool["function"]}


def test_tools_that_have_room_are_the_same() -> None:
    assert tool_set(TOOLS, (), (), len(dumps(TOOLS))) is TOOLS


@example(set(), 14_244, ["bash", "edit", "glob", "read", "skill", "grep", "task", "webfetch", "write", "todowrite"])
@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 25_000), st.permutations(NAMES))
def test_a_call_of_any_is_as_good_as_ever(called: set[str], room: int, first: list[str]) -> None:
    made = tool_set(TOOLS, called, first, room)
    assert telling(made) >= called
    for given_tool, tool in zip(TOOLS, made, strict=True):
        before, after = given_tool["function"], tool["function"]
        assert (after["name"], after["parameters"]["required"]) == (before["name"], before["parameters"]["required"])
        assert {n: p["type"] for n, p in after["parameters"]["properties"].items()} == {
            n: p["type"] for n, p in before["parameters"]["properties"].items()
        }
    least = tool_set(TOOLS, (), (), 0)
    assert len(dumps(tool_set(TOOLS, (), first, room))) <= max(room, len(dumps(least)))
    assert tool_set(made, called, first, room) == made


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.integers(0, 25_000))
def test_those_that_were_called_take_nothing_from_the_others(before: set[str], later: set[str], room: int) -> None:
    assert telling(tool_set(TOOLS, before, TOOLS_FIRST, room)) <= telling(
        tool_set(TOOLS, before | later, TOOLS_FIRST, room)
    )


def test_the_first_globs_come_first_whatever_the_case() -> None:
    shouting = [{**tool, "function": {**tool["function"], "name": tool["function"]["name"].title()}} for tool in TOOLS]
    made = tool_set(shouting, (), TOOLS_FIRST, 9000)
    assert {"Bash", "Read"} <= telling(made) <= {"Bash", "Read", "Edit", "Write", "Grep", "Glob"}


def test_bounds_that_bound_nothing_go_and_others_stay() -> None:
    number = {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1, "exclusiveMinimum": 0}
    parameters = {"$schema": "x", "type": "object", "properties": {"n": number}, "required": ["n"]}
    tool = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": parameters}}
    (made,) = tool_set([tool], (), (), 0)
    assert made["function"]["parameters"] == {
        "type": "object",
        "properties": {"n": {"type": "integer", "exclusiveMinimum": 0}},
        "required": ["n"],
    }


def test_what_is_no_function_stays() -> None:
    others: list[Any] = [{"type": "web_search"}, "odd", {"name": "old", "description": "Old."}, *TOOLS]
    assert list(tool_set(others, (), TOOLS_FIRST, 0))[:3] == others[:3]
