import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import HEAVY, BadText, dumps, holds_more, is_heavy, loads, loads_text

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(values)
def test_what_is_written_is_read(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(json.dumps(value)) == loads(json.dumps(value).encode()) == value


def test_half_an_emoji_survives() -> None:
    body = b'{"content":"half an emoji \\ud83d"}'
    assert loads(body) == {"content": "half an emoji \ud83d"}
    assert loads(dumps(loads(body))) == loads(body)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * 5000])
def test_numbers_that_no_double_holds_are_read_as_none(number: str) -> None:
    assert loads(f'{{"a":[{number}]}}') == loads_text(f'{{"a":[{number}]}}'.encode()) == {"a": [None]}


@pytest.mark.parametrize("inner", ["1", "1e999"])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_deeply_is_not_read(inner: str, opened: str, closed: str) -> None:
    assert dumps([[loads_text((opened * 200 + inner + closed * 200).encode())]])
    for levels in (300, 1000, 5000):
        for read in (loads, loads_text):
            with pytest.raises(ValueError, match="deeply"):
                read((opened * levels + inner + closed * levels).encode())


def test_bytes_are_utf_8() -> None:
    assert loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        with pytest.raises(ValueError, match=r".*"):
            loads('{"a":1}'.encode(encoding))
    with pytest.raises(ValueError, match="decode"):
        loads(b'{"a":"\xff"}')


@pytest.mark.parametrize("data", [b"", b"{", b"[DONE]", b'{"a":1}x', b"[" * 100_000, b'{"a":' * 5000])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        loads(data)


def test_nesting_is_written_or_refused() -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    assert len(dumps(nested)) == 1002
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="deeply"):
        dumps(nested)
    while nested:  # one by one, because freeing it at once would go as deep
        nested = nested[0]


@given(values, st.characters(categories=["Cs"]), st.booleans(), st.booleans())
def test_half_a_pair_is_no_text_wherever_it_stands(value: Any, half: str, key: bool, tolerant: bool) -> None:
    inner = {f"a{half}": value} if key else [value, f"{half}b"]
    written = json.dumps([inner, math.nan] if tolerant else inner).encode()
    with pytest.raises(BadText):
        loads_text(written)


def test_a_pair_and_a_backslash_are_text() -> None:
    assert loads_text(b'["\\ud83d\\ude00", "\\\\ud83d", NaN]')[:2] == ["\U0001f600", "\\ud83d"]
    assert loads_text(b'\xef\xbb\xbf["\\ud83d\\ude00"]') == ["\U0001f600"]


@pytest.mark.parametrize("data", [b'"\xff"', b'"\xed\xa0\x80"', '"a"'.encode("utf-16")])
def test_bytes_that_are_not_utf_8_are_no_text(data: bytes) -> None:
    with pytest.raises(BadText):
        loads_text(data)


def held(value: Any) -> int:
    """Values in lists and objects, each of which is at least one more."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 2 + max(0, len(inner) - 1) + sum(map(held, inner))


TRICKY = st.text(st.sampled_from('",{[\\\nx'), max_size=40)


@given(st.recursive(TRICKY, lambda inner: st.lists(inner) | st.dictionaries(TRICKY, inner), max_leaves=15), st.integers(0, 60))
def test_values_are_counted_without_parsing(value: Any, most: int) -> None:
    assert holds_more(dumps(value), most) == (held(value) > most)


@pytest.mark.parametrize("text", [",", "[{", '",', "\\", '\\"[', "\\\\"])
@pytest.mark.parametrize("before", range(4))
def test_what_stands_in_long_strings_is_no_value(text: str, before: int) -> None:
    data = b" " * before + dumps({"a": text * 400_000, "b": [1, 2]})
    assert not holds_more(data, 6)
    assert holds_more(data, 5)


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


@pytest.mark.parametrize("value", ["x" * (HEAVY + 1), [None] * 2000, ({"a": ["x" * HEAVY]},), [[[["x" * (2 * HEAVY)]]]]])
def test_what_is_much_is_heavy(value: Any) -> None:
    assert is_heavy(value)


def test_nesting_without_end_does_not_matter() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert is_heavy(deep)
