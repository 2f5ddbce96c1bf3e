from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.tolerant import Unreadable, parse

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(values, st.booleans())
def test_json_is_read_without_repairs(value: Any, ascii_only: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii_only, indent=1)) == (value, ())


@given(values.filter(lambda value: isinstance(value, dict | list)))
def test_brackets_that_are_missing_at_the_end_are_added(value: Any) -> None:
    text = json.dumps(value)
    end = len(text.rstrip("]}"))
    if text[:end].endswith(("[", "{", ":")):
        return
    for cut in range(end, len(text)):
        if cut > end or text[end - 1] == '"':
            assert parse(text[:cut]) == (value, ("missing_brackets",))
        else:
            with pytest.raises(Unreadable, match=r"^cut$"):
                parse(text[:cut])


@given(st.text(st.sampled_from("{}[]'\"\\,:ntTrueFalsNo019.-u \n")))
def test_anything_is_read_or_refused(text: str) -> None:
    try:
        value, repairs = parse(text)
    except Unreadable:
        return
    assert parse(json.dumps(value)) == (value, ())
    assert len(set(repairs)) == len(repairs)


@pytest.mark.parametrize(
    ("text", "value", "repairs"),
    [
        ("[1,]", [1], ("trailing_commas",)),
        ('{"a": 1,', {"a": 1}, ("missing_brackets", "trailing_commas")),
        ("['it\\'s', \"it's\"]", ["it's", "it's"], ("single_quotes",)),
        ('[{"a": [1}]', [{"a": [1]}], ("missing_brackets",)),
        ('"\\ud83c\\udf27 \\ud83c \\ud83cx \\u00fc"', "🌧 \ud83c \ud83cx ü", ()),
        ('"a\x00\nb\\q"', "a\x00\nb\\q", ("raw_newlines", "bad_escapes")),
        ("[True, False, None]", [True, False, None], ("python_literals",)),
    ],
)
def test_repairs(text: str, value: Any, repairs: tuple[str, ...]) -> None:
    assert parse(text) == (value, repairs)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cut"),
        ('"a', "cut"),
        ('"a\\', "cut"),
        ('{"a"', "cut"),
        ('{"a":', "cut"),
        ('{"a": 12', "cut"),
        ('{"a": 12\n', "cut"),
        ('{"a": 1.', "cut"),
        ('{"a": -', "cut"),
        ('{"a": [1, 2', "cut"),
        ('{"a": tru', "cut"),
        ('{"a": None', "cut"),
        ("{,}", "name in double quotes"),
        ("{a: 1}", "name in double quotes"),
        ('{"a" 1}', '":"'),
        ("[1 2]", '"," or "]"'),
        ("[1}", '"," or "]"'),
        ("[,]", "a value"),
        ("nul", "a value"),
        ("1 2", "nothing after the end"),
        ("9" * 5000, "too many digits"),
        ("[" * 100, "deeper"),
        ('{"a":' * 100_000, "deeper"),
    ],
)
def test_refusals_say_why(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=r".*") as refused:
        parse(text)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 200
