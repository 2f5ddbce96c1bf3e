from __future__ import annotations

from proxy.shortening.budget import ContextBudget

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
