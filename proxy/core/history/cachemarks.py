"""Marks by which clients tell where a cache of the prompt may end (`cache_control`, Anthropic's, also taken by OpenRouter).

They say nothing to the model, and move: the message that was the newest has one, and on the next turn none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MARK = "cache_control"


def unmarked(value: Any) -> Any:
    """A message, a tool, or a list of parts of one, without marks; the same object if there are none."""
    if isinstance(value, Mapping):
        stripped = {name: _inner(name, each) for name, each in value.items() if name != MARK}
        same = len(stripped) == len(value) and all(stripped[name] is value[name] for name in stripped)
        return value if same else stripped
    return value


def all_unmarked(values: Sequence[Any]) -> Sequence[Any]:
    """Messages or tools without marks; the same object if there are none."""
    done = [unmarked(value) for value in values]
    return values if all(new is old for new, old in zip(done, values, strict=True)) else done


def _inner(name: str, value: Any) -> Any:
    """Return the nested object that may carry marks inside a message or a tool: its parts, its calls, its function."""
    if name in ("content", "tool_calls") and isinstance(value, list):
        return all_unmarked(value)
    return unmarked(value) if name == "function" else value
