from __future__ import annotations

import pytest

from proxy.shortening.policy import LOCAL, SMALL_WINDOW, STANDARD, Policy, limits_for


@pytest.mark.parametrize(
    ("policy", "window", "protect", "gain", "cap"),
    [
        ("standard", 1_000_000, 40_000, 20_000, None),
        ("standard", 8192, 1638, 819, None),
        ("local", 1_000_000, 2_000, 500, 1_000),
        ("local", 4096, 819, 409, 1_000),
        ("auto", SMALL_WINDOW, 2_000, 500, None),
        ("auto", SMALL_WINDOW + 1, 3_277, 1_638, None),
        ("auto", 1_000_000, 40_000, 20_000, None),
        ("auto", 2048, 409, 204, None),
    ],
)
def test_limits_are_capped_by_shares_of_the_window(
    policy: Policy, window: int, protect: int, gain: int, cap: int | None
) -> None:
    limits = limits_for(policy, window)
    assert (limits.protect_newest, limits.minimum_gain, limits.answer_cap) == (protect, gain, cap)


def test_the_tables_own_figures() -> None:
    assert (STANDARD.protect_newest, STANDARD.minimum_gain, STANDARD.answer_cap) == (40_000, 20_000, None)
    assert (LOCAL.protect_newest, LOCAL.minimum_gain, LOCAL.answer_cap) == (2_000, 500, 1_000)
