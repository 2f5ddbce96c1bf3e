from typing import Any

import pytest

from proxy.emulation.offer import offer_of
from tests.emulation.outputs import offer

NAMES = frozenset({"get_weather", "write_file", "search", "now"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": []},
        {"tools": None},
        {"tools": "x"},
        {"tools": [1, {}, {"type": "custom", "custom": {"name": "x"}}, {"function": {"name": 5}}]},
        {"tools": [{"function": {"name": ""}}]},
    ],
)
def test_no_offer(body: dict[str, Any]) -> None:
    assert offer_of(body) is None


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
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": n}} for n in ("now", "fly")]},
            },
            "required",
            frozenset({"now"}),
        ),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, kind: str, names: frozenset[str]) -> None:
    found = offer(tool_choice=choice)
    assert (found.choice, found.callable) == (kind, names)
    assert frozenset(found.tools) == NAMES
