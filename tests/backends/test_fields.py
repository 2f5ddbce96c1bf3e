from __future__ import annotations

from typing import Any

import pytest

from proxy.backends import fields
from proxy.backends.profile import Fact, Trust


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4096, 4096),
        (4096.0, 4096),
        ("4096", 4096),
        (10**9, 10**9),
        (0, None),
        (-1, None),
        (True, None),
        (0.5, None),
        (float("nan"), None),
        (float("inf"), None),
        (1e30, None),
        (10**9 + 1, None),
        ("", None),
        ("4k", None),
        ("9" * 5000, None),
        (None, None),
        ([4096], None),
    ],
)
def test_tokens_are_positive_and_finite(value: object, expected: int | None) -> None:
    assert fields.tokens(value) == expected


def test_digging_stops_where_there_is_nothing() -> None:
    assert fields.dig({"a": {"b": 1}}, "a", "b") == 1
    assert fields.dig({"a": [1]}, "a", "b") is None
    assert fields.dig(None, "a") is None


def test_what_has_another_type_is_nothing() -> None:
    assert fields.mapping([]) == {}
    assert fields.items({}) == []
    assert fields.objects([1, {"a": 1}, None]) == [{"a": 1}]
    assert fields.nonblank("  ") is None
    assert fields.switch(1) is None


def test_an_absent_list_is_not_an_empty_one() -> None:
    assert fields.contains(None, "tools") is None
    assert fields.contains([], "tools") is False
    assert fields.contains([{}, "tools"], "tools") is True


def test_a_fact_needs_a_value() -> None:
    assert fields.fact(None, "nobody", Trust.LISTED) is None
    assert fields.fact(value=False, origin="x", trust=Trust.LISTED) == Fact(value=False, origin="x", trust=Trust.LISTED)


def test_ids_go_before_aliases() -> None:
    entries: list[dict[str, Any]] = [{"id": "a", "aliases": ["b"]}, {"id": "b"}]
    assert fields.entry_of(entries, "b") == {"id": "b"}
    assert fields.entry_of(entries[:1], "b") == entries[0]
    assert fields.entry_of(entries, "c") is None


def test_only_entries_with_an_id_are_models() -> None:
    assert fields.openai_models({"data": [{"id": "a"}, {"id": ""}, {"id": 1}, "b"]}) == [{"id": "a"}]
    assert fields.openai_models({"data": {}}) is None


def test_of_a_list_without_end_the_beginning_is_read() -> None:
    assert len(fields.objects([{}] * 50_000)) == fields.MOST_OBJECTS
