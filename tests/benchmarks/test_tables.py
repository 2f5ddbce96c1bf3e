"""What the benchmarks of sessions share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tables import mapped, percent, table
from tests.prefix import common


def test_a_table_has_a_line_under_its_head() -> None:
    assert table([["a", "b"], ["1", "22"]]) == "| a |  b |\n| - | -- |\n| 1 | 22 |"


def test_a_share_of_nothing_is_none() -> None:
    assert (percent(1, 8), percent(0, 0)) == ("12.5", "-")


def test_in_one_process_it_is_map() -> None:
    assert list(mapped(1, max, [1, 5], [4, 2])) == [4, 5]


@given(st.binary(), st.binary(), st.binary())
def test_two_prompts_have_their_beginning_in_common(both: bytes, one: bytes, other: bytes) -> None:
    before, after = both + one, both + other
    length = common(before, after)
    assert length >= len(both)
    assert before[:length] == after[:length]
    assert length == min(len(before), len(after)) or before[length] != after[length]
