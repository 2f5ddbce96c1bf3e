from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.budget import ContextBudget

BUDGET = ContextBudget(window=1000)


def test_fractions_become_tokens() -> None:
    assert (BUDGET.goal, BUDGET.limit, BUDGET.pause_point) == (500, 970, 900)
    assert BUDGET.fill(250) == 0.25
    odd = ContextBudget(window=333, trigger=0.7, target=0.3, pause=0.95)
    assert (odd.goal, odd.limit, odd.pause_point) == (99, 323, 316)


def test_a_prompt_is_due_by_its_estimate_or_when_it_might_not_fit() -> None:
    assert not BUDGET.needs_compaction(799, 900)
    assert BUDGET.needs_compaction(800, 800)
    assert BUDGET.needs_compaction(500, 971)
    assert not BUDGET.needs_compaction(500, 970)


def test_where_most_is_fixed_trigger_and_target_follow_what_is_left() -> None:
    tight = ContextBudget(window=1000, fixed=700)
    assert tight.is_tight
    assert (tight.goal, tight.enough, tight.due) == (775, 775, 850)
    assert not tight.needs_compaction(849, 900)
    assert tight.needs_compaction(850, 900)
    half = ContextBudget(window=1000, fixed=500)
    assert (half.goal, half.enough, half.due) == (625, 635, 850)
    loose = ContextBudget(window=1000, fixed=300)
    assert not loose.is_tight
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


@given(st.integers(256, 2**20), st.integers(256, 2**20), st.floats(0, 1))
def test_what_can_not_be_shortened_never_fills_that(window: int, within: int, fixed: float) -> None:
    """A compaction would else be due on each turn, and gain nothing."""
    budget = ContextBudget(window=window, within=within, fixed=int(window * fixed))
    assert budget.zone <= window
    assert budget.goal <= budget.enough <= budget.limit or fixed > 0.75
    assert fixed > 0.45 or budget.fixed < budget.goal < budget.due
