from __future__ import annotations

import math
from typing import Any

import pytest

from proxy.recall.choosing import choose
from proxy.recall.dense import by_nearness, fused, nearness, query_text, texts_for, vector_of
from proxy.recall.passages import passages_of
from proxy.recall.query import query_of
from proxy.recall.ranking import rank


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("nomic-embed-text:v1.5", "search_query: q", "search_document: p"),
        ("intfloat/multilingual-e5-large", "query: q", "passage: p"),
        ("text-embedding-bge-m3", "q", "p"),
        ("modele5x", "q", "p"),
    ],
)
def test_texts_are_written_as_the_model_was_trained_to_read_them(model: str, query: str, passage: str) -> None:
    assert texts_for(model, "q", ["p"]) == (query, [passage])


def test_a_query_of_qwens_is_an_instruction() -> None:
    query, passages = texts_for("Qwen3-Embedding-0.6B", "q", ["p"])
    assert (query[:10], query[-8:], passages) == ("Instruct: ", "\nQuery:q", ["p"])


def test_a_short_message_is_read_with_the_one_before_it() -> None:
    said: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Shall I migrate the billing database?"},
        {"role": "user", "content": "yes, do that"},
        {"role": "user", "content": "Rename the invoice table and its columns " + "now " * 400},
    ]
    assert query_text(said, 1) == "Shall I migrate the billing database?\nyes, do that"
    assert len(query_text(said, 2)) <= 1000
    assert query_text([{"role": "user", "content": " "}], 0) == ""


def test_vectors_have_a_length_of_one_or_are_none() -> None:
    assert list(vector_of([3.0, 4.0])) == pytest.approx([0.6, 0.8])
    for values in ([], [0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0]):
        assert len(vector_of(values)) == 0
    for wrong in (["a"], [None], [[1.0]]):
        with pytest.raises((TypeError, ValueError)):
            vector_of(wrong)  # type: ignore[arg-type]


def test_what_points_the_same_way_is_nearest_and_no_vector_is_farthest() -> None:
    query = vector_of([1.0, 0.0])
    near = nearness(query, [vector_of(v) for v in ([2.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [])])
    assert near == pytest.approx([2.0, 1 + math.sqrt(0.5), 0.0, 0.0])
    assert nearness(query, [vector_of([1.0, 0.0, 0.0])]) == [0.0]


def test_orders_are_fused_by_ranks() -> None:
    assert fused([[1, 2, 3], [2, 4]]) == [2, 1, 4, 3]
    assert fused([[], [5]]) == [5]
    assert fused([[], []]) == []


def messages(count: int = 60) -> list[dict[str, Any]]:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"number {n} of so many"} for n in range(count)]
    return [*said, {"role": "user", "content": "Where did Quentin leave the umbrella?"}]


def chosen(near: list[float] | None, lost: int = 50) -> list[int]:
    sent = messages()
    said = [passages_of(message) for message in sent[:-1]]
    ranking = rank(said, query_of(sent, len(sent) - 1), near)
    found = choose(sent, said, ranking, lost=lambda at: at < lost, room=500.0, cost=len, in_prompt=lambda _: False)
    return [passage.index for passage in found]


def test_what_no_word_tells_is_found_by_its_vector() -> None:
    assert chosen(None) == []
    near = [1.0 + 0.001 * (at % 7) for at in range(60)]
    near[13] = 1.6
    assert chosen(near)[0] == 13


def test_what_stands_out_in_the_prompt_more_than_elsewhere_needs_no_recalling() -> None:
    near = [1.0 + 0.001 * (at % 7) for at in range(60)]
    near[13], near[55] = 1.5, 1.6
    assert chosen(near) == []


def test_passages_without_a_vector_change_nothing_for_others() -> None:
    near = [1.0 + 0.001 * (at % 7) for at in range(60)]
    near[13], near[20] = 1.6, 0.0
    assert chosen(near)[0] == 13
    sent = messages()
    ranking = rank([passages_of(message) for message in sent[:-1]], query_of(sent, 60), near)
    assert by_nearness(ranking, near).scores[20] == 0.0
