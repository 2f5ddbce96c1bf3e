from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.recall.passages import passages_of
from proxy.recall.query import query_of
from proxy.recall.ranking import _AFTER, _AROUND, _BEFORE, _REACH, _with_context, rank

FILLER = [
    {"role": role, "content": f"{role} talks of the {thing} and the weather"}
    for thing in ("garden", "kitchen", "train", "office", "holiday", "bicycle", "window", "winter")
    for role in ("user", "assistant")
]


def best(messages: list[dict[str, Any]], question: str) -> int:
    ranking = rank([passages_of(m) for m in messages], query_of([{"role": "user", "content": question}], 0))
    at = max(range(len(ranking.scores)), key=lambda at: ranking.scores[at])
    return ranking.places[at][0]


def test_the_passage_with_the_rare_words_comes_first() -> None:
    messages = [*FILLER, {"role": "user", "content": "My sister is called Mathilda."}, *FILLER]
    assert best(messages, "What is the name of my sister?") == len(FILLER)


def test_an_answer_without_the_words_of_the_question_is_found_by_the_question_before_it() -> None:
    asked = [
        {"role": "assistant", "content": "Which instrument did you learn as a child?"},
        {"role": "user", "content": "The cello."},
    ]
    messages = [*FILLER, *asked, *FILLER]
    ranking = rank(
        [passages_of(m) for m in messages],
        query_of([{"role": "user", "content": "Do you know what instrument I learned as a child?"}], 0),
    )
    order = sorted(range(len(messages)), key=lambda at: -ranking.scores[at])
    assert order[:2] == [len(FILLER), len(FILLER) + 1]


def test_what_a_short_question_leans_on_is_found_by_its_own_words_alone() -> None:
    """It has all the words that were taken from it, so that nothing else could stand out."""
    codes = [
        {"role": "user", "content": f"The code of item{n} is c{n}, " + " ".join(f"w{n}x{i}" for i in range(40))}
        for n in range(20)
    ]
    messages = [*codes, {"role": "user", "content": "What is the code of item7?"}]
    query = query_of(messages, 20)
    ranking = rank([passages_of(m) for m in codes], query)
    assert "item19" in query.terms
    assert max(range(20), key=ranking.scores.__getitem__) == 7
    again = [*codes, {"role": "user", "content": "What is the code of item19?"}]
    scores = rank([passages_of(m) for m in codes], query_of(again, 20)).scores
    assert max(range(20), key=scores.__getitem__) == 19


def test_a_day_that_is_named_finds_what_was_said_on_it() -> None:
    days = [{**m, "day": f"2024-03-{1 + n // 4:02}"} for n, m in enumerate(FILLER)]
    assert best(days, "What did we talk about on March 3rd?") in range(8, 12)


def test_a_message_without_a_day_is_of_the_day_of_those_before_it() -> None:
    messages = [{"role": "user", "content": "[2024-03-01] hello"}, *FILLER[:4]]
    ranking = rank([passages_of(m) for m in messages], query_of(messages, 0))
    assert [day.isoformat() for day in ranking.days if day] == ["2024-03-01"] * 5


def test_an_empty_history_has_no_ranking() -> None:
    assert rank([], query_of(FILLER, 0)).scores == []


@given(st.lists(st.floats(0, 100), max_size=30))
def test_what_stands_around_a_passage_counts_at_every_place(own: list[float]) -> None:
    last = len(own)
    for at, score in enumerate(_with_context(own)):
        around = own[max(0, at - _REACH) : at + _REACH + 1]
        before, after = own[at - 1] if at else 0.0, own[at + 1] if at + 1 < last else 0.0
        wanted = own[at] + _BEFORE * before + _AFTER * after + _AROUND * sum(around) / (2 * _REACH + 1)
        assert score == pytest.approx(wanted, abs=1e-6)
