from typing import Any

import pytest
from hypothesis import given

from proxy.core.piece import Identity, as_count
from proxy.dialects.chat.answers import piece_of
from proxy.stream.answer import Answer
from tests.stream.support import anything, chunk, odd_chunks


def count(text: str) -> int:
    return len(text.split())


def answer(*chunks: dict[str, Any]) -> Answer:
    made = Answer(100, count)
    for value in chunks:
        made.add(piece_of(value, b""))
    return made


@given(odd_chunks())
def test_any_chunk_is_taken_in(value: dict[str, Any]) -> None:
    made = answer(value, value)
    assert isinstance(made.text, str)
    assert made.completion_tokens >= 0
    assert made.usage() is None or made.usage()


@given(anything)
def test_anything_in_any_place(value: Any) -> None:
    answer({"id": value, "created": value, "model": value, "usage": value, "choices": value, "timings": value})
    answer({"usage": {"prompt_tokens": value, "completion_tokens": value}, "timings": {"cache_n": value}})
    answer(chunk(value), {"choices": [value]}, chunk({"content": value, "tool_calls": value, "role": value}))
    answer(chunk({"tool_calls": [{"function": value}, {"function": {"name": value, "arguments": value}}]}))


@pytest.mark.parametrize("value", [{}, {"error": {"message": "x"}}, {"choices": []}])
def test_what_is_no_chunk_has_no_identity(value: dict[str, Any]) -> None:
    assert answer(value).identity is None


def test_odd_identities_become_plain_ones() -> None:
    made = answer({"id": 7, "created": "now", "model": None, "choices": [{"delta": {}}]})
    assert made.identity == Identity("", 0, "")


def test_text_reasoning_and_calls_are_kept_apart() -> None:
    made = answer(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "Hm."}),
        chunk({"reasoning_content": "So.", "reasoning": "So."}),
        chunk({"content": "Yes"}),
        chunk({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "tool_calls"),
    )
    assert (made.text, made.reasoning) == ("Yes", "Hm.So.")
    assert made.attempt.calling
    assert (made.attempt.finish, made.attempt.completion_tokens) == ("tool_calls", 4)
    assert made.has_output


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("a", 1), (" word", 1), (" internationalisation", 1), ("    ", 1), (" two words", 2), (" x" * 9, 9), ("字字", 1)],
)
def test_a_delta_is_one_token_unless_it_holds_several(text: str, tokens: int) -> None:
    assert answer(chunk({"content": text})).completion_tokens == tokens
    plain = Answer(100, count)
    plain.count_only(text)
    assert plain.completion_tokens == tokens


def test_arguments_are_counted_without_what_is_around_them() -> None:
    made = answer(chunk({"tool_calls": [{"index": 0, "id": "c" * 40, "function": {"arguments": ' "a b c'}}]}))
    assert made.completion_tokens == 3
    assert answer(chunk({"tool_calls": [{"index": 0}]})).completion_tokens == 1


def test_usage_is_believed_and_summed_over_attempts() -> None:
    made = answer(chunk({"content": "a"}), {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7}})
    assert made.attempt.prompt_tokens == 90
    made.attempts.append(type(made.attempt)(50))
    counted = {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57}
    assert made.usage() == counted, "where nobody reported yet"
    made.add(piece_of({"usage": {"prompt_tokens": 40, "completion_tokens": 3, "cost": 1}}, b""))
    assert made.usage() == {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50, "cost": 1}


def test_running_usage_counts_what_comes_with_it() -> None:
    used = {"prompt_tokens": 90, "completion_tokens": 5}
    made = answer(chunk({"content": "a"}, usage=used), chunk({"content": "b"}))
    assert made.completion_tokens == 6


def test_timings_tell_the_prompt_only_with_its_cached_part() -> None:
    made = answer(chunk({"content": "a"}, timings={"cache_n": 80, "prompt_n": 5, "predicted_n": 9}))
    assert (made.attempt.prompt_tokens, made.completion_tokens) == (85, 9)
    made = answer(chunk({"content": "a"}, timings={"prompt_n": 5, "predicted_n": 9}))
    assert (made.attempt.prompt_tokens, made.completion_tokens) == (100, 9)


@pytest.mark.parametrize(
    ("text", "kept", "gap"),
    [
        ("one two thr", "one two", " "),
        ("one two\n\n", "one two", "\n\n"),
        ("one two\n\nthr", "one two", "\n\n"),
        *(("one", "one", ""), ("  one", "  one", ""), ("", "", ""), (" \n", " \n", "")),
        ("a " + "x" * 65, "a " + "x" * 65, ""),
    ],
)
def test_half_a_word_is_taken_back_with_its_space(text: str, kept: str, gap: str) -> None:
    made = answer(chunk({"content": text}))
    assert made.cut_word() == gap
    assert made.text == kept


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), (5.9, 5), (0, 0), (-3, 0), (True, 0), ("5", 0), (None, 0), (float("inf"), 0), (float("nan"), 0), ([], 0)],
)
def test_counts(value: Any, number: int) -> None:
    assert as_count(value) == number


@given(anything)
def test_what_is_read_is_of_a_choice_that_is_an_object(value: Any) -> None:
    piece = piece_of({"choices": value}, b"")
    assert piece.choice is (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
    read = piece_of({"id": value, "created": value}, b"").identity
    assert read is not None
    assert read.created >= 0
