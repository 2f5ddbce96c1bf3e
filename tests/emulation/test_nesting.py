from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.nesting import Nesting
from tests.emulation.test_tolerant import values

structures = values.filter(lambda value: isinstance(value, dict | list))


def taken(*pieces: str) -> int:
    """Characters that belong to the value, however they came."""
    nesting, count = Nesting(), 0
    for piece in pieces:
        count += nesting.take(piece)
        if nesting.over:
            break
    return count


@given(structures, st.booleans(), st.sampled_from([None, 1]))
def test_json_is_followed_to_its_end(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert taken(text + "]} x") == taken(*text, "]} x") == len(text)
    for cut in range(len(text)):
        nesting = Nesting()
        assert nesting.take(text[:cut]) == cut
        assert not nesting.over


@given(st.text(st.sampled_from("{}[]'\"\\,:ntT0.-u \n"), max_size=40))
def test_no_cut_changes_anything(text: str) -> None:
    text = "[" + text
    assert taken(text) == taken(*text) <= len(text)


@pytest.mark.parametrize(
    ("inside", "rest"),
    [
        ("{", "{"),
        ("{ ", ": 1}"),
        ("{x ", "and y}"),
        ('{"a" ', "1}"),
        ('{"a":', ", 1}"),
        ("[a, b ", "c]"),
        ("[1 ", "[2]]"),
        ("[1", "}"),
        ("[", "<b>]"),
        ("[", "`x`]"),
        ("[", "(x)]"),
        ('["a', '\n"]'),
        ("[it", "'s]"),
        ('["a"', '"b"]'),
        ("[link]", "(x)"),
    ],
)
def test_it_is_over_where_it_is_no_json_any_longer(inside: str, rest: str) -> None:
    assert taken(inside + rest) == taken(*inside, *rest) == len(inside)


@pytest.mark.parametrize("text", ["[1,]", "{'a': 'b'}", "{a: True,}", '{"a": "\\"}"}', "{}", "[ ]", '{"a":}'])
def test_small_mistakes_are_overlooked(text: str) -> None:
    assert taken(text) == taken(*text) == len(text)
