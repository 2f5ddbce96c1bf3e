"""The window and its fractions, and what the next turn adds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.budget import NEXT, ContextBudget, Growth, budget_for, growth, history_next
from proxy.core.piece import CallPart, Piece
from proxy.core.settings import Settings

BUDGET = ContextBudget(window=1000)


def test_fractions_become_tokens() -> None:
    assert (BUDGET.goal, BUDGET.limit, BUDGET.pause_point) == (500, 970, 900)
    odd = ContextBudget(window=333, trigger=0.7, target=0.3, pause=0.95)
    assert (odd.goal, odd.limit, odd.pause_point) == (99, 323, 316)


def test_where_most_is_fixed_trigger_and_target_follow_what_is_left() -> None:
    tight = ContextBudget(window=1000, fixed=700)
    assert (tight.goal, tight.enough, tight.due) == (775, 775, 850)
    half = ContextBudget(window=1000, fixed=500)
    assert (half.goal, half.enough, half.due) == (625, 635, 850)
    loose = ContextBudget(window=1000, fixed=300)
    assert (loose.goal, loose.enough, loose.due) == (500, 635, 800)


@given(st.integers(256, 2**20), st.floats(0, 1))
def test_between_target_and_trigger_there_is_room_whatever_is_fixed(window: int, fixed: float) -> None:
    budget = ContextBudget(window=window, fixed=int(window * fixed))
    assert budget.goal <= budget.enough
    assert budget.due <= budget.ceiling + 1 < budget.pause_point + 1
    assert fixed > 0.75 or budget.enough < budget.due


def test_prompts_may_be_kept_in_a_smaller_window_than_there_is() -> None:
    budget = ContextBudget(window=100_000, within=10_000, fixed=1000)
    assert (budget.goal, budget.due, budget.ceiling) == (5000, 8000, 8500)
    assert (budget.limit, budget.pause_point) == (97_000, 90_000)
    assert ContextBudget(window=1000, within=10_000).zone == 1000


@pytest.mark.parametrize(
    ("fixed", "answer", "figures"),
    [(0, 400, (375, 600)), (0, 9000, (312, 500)), (600, 300, (700, 800)), (0, 50, (500, 800)), (1200, 300, (1150, 850))],
)
def test_an_answer_that_can_not_be_paused_has_its_room(fixed: int, answer: int, figures: tuple[int, int]) -> None:
    budget = budget_for(Settings(), 1000, fixed, answer)
    assert (budget.goal, budget.due) == figures


@given(st.integers(256, 2**20), st.integers(256, 2**20), st.floats(0, 1))
def test_what_can_not_be_shortened_never_fills_that(window: int, within: int, fixed: float) -> None:
    """A compaction would else be due on each turn, and gain nothing."""
    budget = ContextBudget(window=window, within=within, fixed=int(window * fixed))
    assert budget.zone <= window
    assert budget.goal <= budget.enough <= budget.limit or fixed > 0.75
    assert fixed > 0.45 or budget.fixed < budget.goal < budget.due


# -- the next turn


def said(role: str, text: str = "x") -> dict[str, Any]:
    return {"role": role, "content": text}


TALK = [said("user"), said("assistant")] * 6


def test_growth_is_the_most_of_the_latest_turns() -> None:
    costs = [900.0, 10.0, 5.0, 99.0, 7.0, 20.0, 30.0, 21.0, 12.0, 22.0, 8.0, 23.0]
    # The opening message, and an answer of five turns ago, say nothing of the next turn.
    assert growth(TALK, costs, 2000) == Growth(30, 23)


def test_growth_is_bounded_by_a_share_of_the_window() -> None:
    assert growth(TALK, [1000.0] * len(TALK), 800) == Growth(100, 100)


def test_the_results_of_one_step_grow_a_history_together() -> None:
    messages = [said("user"), said("assistant"), said("tool"), said("tool"), said("assistant"), said("user")]
    assert growth(messages, [5.0, 1.0, 30.0, 40.0, 2.0, 3.0], 2000) == Growth(70, 2)


def test_of_a_history_without_turns_nothing_is_known() -> None:
    assert growth([said("user")], [50.0], 2000) == Growth(0, 0)


def test_the_next_history_has_the_answer_and_something_in_place_of_the_newest_message() -> None:
    messages = [said("user", "Hello")]
    expected = [*messages, said("assistant", "Hi!"), said("user", NEXT)]
    assert history_next(messages, Piece(text="Hi!", thought="hm"), parsed=False) == (expected, [])
    assert len(messages) == 1


@pytest.mark.parametrize(("parsed", "arguments"), [(False, '{"a":  1}'), (True, '{"a":1}')])
def test_calls_and_their_results_come_after_what_can_be_compacted(parsed: bool, arguments: str) -> None:
    call = CallPart(name="f", arguments='{"a":  1}', id="c1")
    history, (answer, result) = history_next([said("user")], Piece(calls=(call,)), parsed=parsed)
    assert history == [said("user")]
    assert answer["content"] is None
    (made,) = answer["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": arguments}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": NEXT}


def test_thoughts_come_back_only_where_they_came_back_before() -> None:
    thinks = Piece(text="<think>hm</think>\n\nHi!", thought="well")
    without = [said("user"), said("assistant", "So."), said("user")]
    assert history_next(without, thinks, parsed=False)[0][3] == said("assistant", "Hi!")
    inside = [said("user"), said("assistant", "<think>a</think>So."), said("user")]
    assert history_next(inside, thinks, parsed=False)[0][3]["content"] == thinks.text
    beside = [said("user"), {**said("assistant"), "reasoning_content": "a"}, said("user")]
    assert history_next(beside, thinks, parsed=False)[0][3]["reasoning_content"] == "well"
