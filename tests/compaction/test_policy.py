from __future__ import annotations

from dataclasses import asdict
from typing import get_args

import pytest

from proxy.compaction.policy import SMALL_WINDOW, PruneLimits, limit_origins, limits_for
from proxy.core.settings import Limit, Policy, Settings


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


NAMES = get_args(Limit)


def figures(limits: PruneLimits) -> dict[str, int | None]:
    assert limits.results is not None
    told = asdict(limits.results)
    return {
        "protect_newest": limits.protect_newest,
        "minimum_gain": limits.minimum_gain,
        "result_tokens": told.pop("tokens"),
        "guide": limits.guide,
        "tools": limits.tools,
        "answer_cap": limits.answer_cap,
        "recall": limits.recall,
        **told,
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["auto", "standard", "local"])
def test_each_limit_can_be_set_alone_and_holds_as_it_is(policy: Policy, name: Limit) -> None:
    usual = figures(limits_for(policy, 8192))
    chosen = figures(limits_for(policy, 8192, {name: 123_456}))
    assert chosen == {**usual, name: 123_456}
    assert set(usual) == set(NAMES)


@pytest.mark.parametrize(
    ("policy", "window", "tokens", "lines"),
    [
        ("standard", 1_000_000, "standard", "standard"),
        ("standard", 8192, "window", "standard"),
        ("local", 1_000_000, "local", "local"),
        ("local", 4096, "window", "local"),
        ("auto", SMALL_WINDOW, "local", "local"),
        ("auto", SMALL_WINDOW + 1, "window", "standard"),
    ],
)
def test_where_a_figure_comes_from_is_told(policy: Policy, window: int, tokens: str, lines: str) -> None:
    origins = limit_origins(Settings(policy=policy), "m", window)
    assert set(origins) == set(NAMES)
    assert (origins["protect_newest"], origins["lines"]) == (tokens, lines)
