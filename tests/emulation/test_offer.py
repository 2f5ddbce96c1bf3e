from __future__ import annotations

from typing import Any

import pytest

from proxy.emulation import offer_of
from tests.emulation.outputs import BODY, FUNCTIONS, offer

NAMES = frozenset({"get_weather", "write_file", "search", "now"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": []},
        {"tools": None, "functions": None},
        {"tools": "x"},
        {"tools": [1, {}, {"type": "custom", "custom": {"name": "x"}}, {"function": {"name": 5}}]},
        {"functions": 7},
        {"functions": [{"name": ""}]},
    ],
)
def test_no_offer(body: dict[str, Any]) -> None:
    assert offer_of(body) is None


def test_tools_are_offered() -> None:
    found = offer()
    assert tuple(found.tools) == ("get_weather", "write_file", "search", "now")
    assert (found.choice, found.callable, found.parallel, found.legacy) == ("auto", NAMES, True, False)


@pytest.mark.parametrize(
    ("choice", "kind", "names"),
    [
        ("auto", "auto", NAMES),
        ("required", "required", NAMES),
        ("none", "none", frozenset()),
        ({"type": "function", "function": {"name": "now"}}, "named", frozenset({"now"})),
        ({"type": "function", "function": {"name": "fly"}}, "auto", NAMES),
        ({"type": "function"}, "auto", NAMES),
        ("any", "auto", NAMES),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": n}} for n in ("now", "fly")],
                },
            },
            "required",
            frozenset({"now"}),
        ),
    ],
)
def test_tool_choice(choice: Any, kind: str, names: frozenset[str]) -> None:
    found = offer(tool_choice=choice)
    assert (found.choice, found.callable) == (kind, names)
    assert frozenset(found.tools) == NAMES


def test_one_call_at_a_time() -> None:
    assert not offer(parallel_tool_calls=False).parallel
    assert offer(parallel_tool_calls=None).parallel


def test_functions_of_the_older_api() -> None:
    found = offer_of({"functions": FUNCTIONS, "function_call": {"name": "now"}})
    assert found is not None
    assert (found.choice, found.callable, found.parallel, found.legacy) == ("named", frozenset({"now"}), False, True)
    both = offer_of({**BODY, "functions": [{"name": "other"}], "function_call": "none"})
    assert both is not None
    assert (frozenset(both.tools), both.choice, both.legacy) == (NAMES, "auto", False)
