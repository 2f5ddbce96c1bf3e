from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.memo import Memo


@given(st.lists(st.binary(max_size=12)))
def test_what_is_remembered_is_what_is_made_and_bounded(keys: list[bytes]) -> None:
    memo = Memo(bytes.upper, most=4, longest=8)
    for key in keys:
        assert memo[key] == key.upper()
        assert len(memo) <= 4
        assert all(len(known) <= 8 for known in memo)


def test_what_is_known_is_not_made_again() -> None:
    made = list[str]()

    def make(key: str) -> str:
        made.append(key)
        return key * 2

    memo = Memo(make, most=2, longest=3)
    assert [memo[key] for key in ("a", "a", "long", "long")] == ["aa", "aa", "longlong", "longlong"]
    assert made == ["a", "long", "long"]


def test_what_can_not_be_made_is_told_each_time() -> None:
    memo = Memo(int, most=2, longest=3)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            memo["x"]
    assert not memo
