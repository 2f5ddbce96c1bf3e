"""What is much is told at a glance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.weight import HEAVY, is_heavy

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


def weight(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(64 + weight(part) for part in inner)


@given(JSON, st.integers(0, 2000))
def test_the_weight_is_what_is_held(value: Any, limit: int) -> None:
    assert is_heavy(value, limit) == (weight(value) > limit)


@pytest.mark.parametrize(
    "value", ["x" * (HEAVY + 1), [None] * 2000, ({"a": ["x" * HEAVY]},), [[[["x" * (2 * HEAVY)]]]]]
)
def test_what_is_much_is_heavy(value: Any) -> None:
    assert is_heavy(value)


def test_nesting_without_end_does_not_matter() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert is_heavy(deep)
