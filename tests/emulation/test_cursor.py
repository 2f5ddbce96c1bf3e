from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.cursor import LONGEST_WORD, Cursor, More, MoreThanSpace, Words


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


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", Cursor.peek),
        ("ab", lambda cursor: cursor.literal("abc")),
        ("ab", lambda cursor: cursor.word(Words({"ab"}))),
        ("aa", lambda cursor: cursor.run(re.compile("a*"))),
    ],
)
def test_what_is_not_settled_asks_for_more_until_the_text_has_ended(
    text: str, read: Callable[[Cursor], object]
) -> None:
    with pytest.raises(More):
        read(Cursor(text))
    read(Cursor(text, ended=True))


def test_white_space_is_known_to_tell_nothing() -> None:
    with pytest.raises(MoreThanSpace):
        Cursor("  ").run()


def test_what_was_consumed_can_be_put_back() -> None:
    cursor = Cursor("abc")
    assert cursor.take(2) == "ab"
    cursor.unread("b")
    cursor.push("d")
    cursor.unread("xa")
    assert (cursor.rest, cursor.literal("xab"), cursor.rest) == ("xabcd", True, "cd")
