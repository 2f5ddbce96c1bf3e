"""Forward, compact or refuse: what decides about a prompt, and about the next one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.budget import ContextBudget, Growth
from proxy.compaction.decision import NEAR, Compact, Decision, Facts, Forward, Refuse, decide, decide_next
from proxy.core.request import CompactionRequest

BUDGET = ContextBudget(window=1000)
NEXT_BUDGET = ContextBudget(window=2000)
SMALL = Growth(20, 40)


def is_compacted(decision: Decision) -> bool:
    return isinstance(decision, Compact)


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        (Facts(799, 900), Forward()),
        (Facts(800, 800), Compact()),
        (Facts(500, 970), Forward()),
        (Facts(500, 971), Compact()),  # it might not fit
        (Facts(849, 900, passing=50), Forward()),  # recalled for this turn
        (Facts(850, 900, passing=50), Compact()),
        (Facts(851, 900, passing=100), Compact()),  # not more than this, even for this turn alone
        (Facts(634, 700, cramped=True), Forward()),
        (Facts(635, 700, cramped=True), Compact()),
        (Facts(100, 100, was_cut=True), Compact(too_large=False)),
        (Facts(400, 400, requested=CompactionRequest(now=True)), Compact(200, too_large=False)),
        (Facts(399, 399, requested=CompactionRequest(trigger=400)), Forward()),
        (Facts(400, 400, requested=CompactionRequest(trigger=400)), Compact(200, too_large=False)),
        (Facts(900, 900, requested=CompactionRequest()), Compact()),
    ],
)
def test_a_prompt_is_compacted_for_one_of_these_reasons(facts: Facts, decision: Decision) -> None:
    assert decide(BUDGET, facts) == decision
    assert decide(None, facts) == Forward()


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        (Facts(999, 999, counted=True), Forward()),
        (Facts(1000, 1000, counted=True), Refuse()),
        (Facts(1100, 1200), Forward()),  # the backend decides
        (Facts(1100, 1200, cuts=True), Refuse()),
        (Facts(1100, 1201, cuts=True), Forward()),  # by the lower bound it fits
    ],
)
def test_what_is_too_long_after_a_compaction_is_refused_if_nobody_else_would(facts: Facts, decision: Decision) -> None:
    assert decide(BUDGET, facts, compacted=True) == decision


# -- the next turn


@pytest.mark.parametrize(
    ("tokens", "upper", "grown", "recalled", "due"),
    [
        (1000, 1010, SMALL, 0, False),
        (1575, 1585, SMALL, 0, False),
        (1576, 1585, SMALL, 0, True),  # with what the client will say it reaches the trigger
        (1400, 1930, SMALL, 0, True),  # it might not fit
        (1560, 1570, Growth(20, 240), 0, True),  # the answer would be paused
        (1200, 1210, Growth(20, 900), 0, False),  # that alone is not worth it yet
        (1500, 1510, SMALL, 200, True),  # what was recalled for this turn would not fit beside it
        (1200, 1210, SMALL, 1000, False),
    ],
)
def test_it_is_due_if_the_next_turn_would_be(tokens: int, upper: int, grown: Growth, recalled: int, due: bool) -> None:
    assert is_compacted(decide_next(NEXT_BUDGET, Facts(tokens, upper), grown, recalled=recalled)) is due


@given(st.integers(0, 4000), st.integers(0, 500), st.integers(0, 500), st.integers(0, 600))
def test_what_would_be_compacted_before_a_client_is_done_ahead(tokens: int, asked: int, answered: int, recalled: int) -> None:
    facts = Facts(tokens, tokens)
    due = is_compacted(decide_next(NEXT_BUDGET, facts, Growth(asked, answered), recalled=recalled))
    if is_compacted(decide(NEXT_BUDGET, facts.plus(asked))):
        assert due
    if due and asked + answered <= NEXT_BUDGET.window // 4:
        assert tokens >= NEXT_BUDGET.due * NEAR
