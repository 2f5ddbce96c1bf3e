from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.cursor import LONGEST_WORD, Words


@given(st.sets(st.text("ab", max_size=4)), st.text("abc", max_size=5))
def test_words_and_their_beginnings(words: set[str], text: str) -> None:
    asked = Words(words)
    assert (text in asked) == (text in words)
    assert (asked.begun(text) == text) == (not text or any(word.startswith(text) for word in words))


def test_words_that_are_too_long_to_be_read_are_left_out() -> None:
    asked = Words({"a" * LONGEST_WORD, "b" * (LONGEST_WORD + 1)})
    assert "a" * LONGEST_WORD in asked
    assert asked.begun("b") == ""
    assert "b" * (LONGEST_WORD + 1) not in asked
