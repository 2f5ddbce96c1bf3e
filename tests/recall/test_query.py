from __future__ import annotations

from typing import Any

from proxy.recall.query import query_of


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def test_a_question_weighs_more_than_what_is_said_beside_it() -> None:
    query = query_of(said("I was in Lisbon with Joana. Which hotel in Porto was cheap?"), 0)
    assert query.asks
    assert query.terms["hotel"] > query.terms["lisbon"] > 0


def test_much_text_around_a_question_does_not_drown_it() -> None:
    words = " ".join(f"word{n}" for n in range(40))
    query = query_of(said(f"{words}. What is the code of item3?"), 0)
    beside = sum(weight for term, weight in query.terms.items() if term.startswith("word"))
    assert beside <= 2 * sum(weight for term, weight in query.terms.items() if not term.startswith("word"))
    assert query.terms["item3"] == 1.0


def test_a_question_that_names_nothing_leans_on_what_stands_before_it() -> None:
    query = query_of(said("I once told you of a film. What was it?"), 0)
    assert query.terms["film"] == 1.0


def test_a_short_message_leans_on_the_answer_before_it() -> None:
    messages = said("Shall we?", "I could migrate the billing database to Postgres.", "yes, do that")
    query = query_of(messages, 2)
    assert 0 < query.terms["postgr"] < 1
    assert "postgr" not in query_of(said("x", "Postgres", "Rename the invoice table today"), 2).terms


def test_a_short_question_is_not_drowned_by_what_it_leans_on() -> None:
    long = " ".join(f"word{n}" for n in range(40))
    query = query_of(said("Hello!", long, "When does the plumber come?"), 2)
    own = query.terms["plumber"] + query.terms["come"]
    assert query.terms["word7"] > 0
    assert sum(query.terms.values()) - own <= own + 1e-9


def test_in_a_tool_loop_the_identifiers_of_the_results_count() -> None:
    messages = [
        *said("Repair the failing build of the billing module"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "run"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "error in src/ledger/post.py line 12 of the file"},
    ]
    assert "src/ledger/post.py" in query_of(messages, 0).terms
    assert "error" not in query_of(messages, 0).terms


def test_results_in_a_users_message_are_not_the_users_words() -> None:
    text = "<tool_result tool_name='x'>secret paperwork</tool_result> What now, Sherlock?"
    assert "paperwork" not in query_of(said(text), 0).terms


def test_a_long_paste_is_bounded() -> None:
    query = query_of(said(" ".join(f"w{n}x" for n in range(5000))), 0)
    assert len(query.terms) <= 48
