"""The tool set: which tools tell what they do where not all have room, and that all can be called."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.shaping.shape import tool_set
from tests.agent_prompts import TOOLS

NAMES = [tool["function"]["name"] for tool in TOOLS]


def telling(tools: Any) -> set[str]:
    return {tool["function"]["name"] for tool in tools if "description" in tool["function"]}


def test_tools_that_have_room_are_the_same() -> None:
    assert tool_set(TOOLS, (), len(dumps(TOOLS))) is TOOLS


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 25_000))
def test_a_call_of_any_is_as_good_as_ever(called: set[str], room: int) -> None:
    made = tool_set(TOOLS, called, room)
    assert telling(made) >= called
    for given_tool, tool in zip(TOOLS, made, strict=True):
        before, after = given_tool["function"], tool["function"]
        assert (after["name"], after["parameters"]["required"]) == (before["name"], before["parameters"]["required"])
        assert {n: p["type"] for n, p in after["parameters"]["properties"].items()} == {
            n: p["type"] for n, p in before["parameters"]["properties"].items()
        }
    least = tool_set(TOOLS, (), 0)
    assert len(dumps(tool_set(TOOLS, (), room))) <= max(room, len(dumps(least)))
    assert tool_set(made, called, room) == made


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.integers(0, 25_000))
def test_those_that_were_called_take_nothing_from_the_others(before: set[str], later: set[str], room: int) -> None:
    assert telling(tool_set(TOOLS, before, room)) <= telling(tool_set(TOOLS, before | later, room))
