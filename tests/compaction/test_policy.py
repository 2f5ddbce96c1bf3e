from dataclasses import asdict
from typing import Any, get_args

import pytest

from proxy.compaction.policy import SMALL_WINDOW, WAIT, limit_origins, prune_limits, summary_wait
from proxy.core.settings import Limit, Policy, Settings

NAMES = get_args(Limit)


@pytest.mark.parametrize(
    ("policy", "window", "protect", "gain", "cap", "origin", "lines"),
    [
        ("standard", 1_000_000, 40_000, 20_000, None, "standard", "standard"),
        ("standard", 8192, 1638, 819, None, "window", "standard"), ("local", 1_000_000, 2_000, 500, 1_000, "local", "local"),
        ("local", 4096, 819, 409, 1_000, "window", "local"), ("auto", SMALL_WINDOW, 2_000, 500, None, "local", "local"),
        ("auto", SMALL_WINDOW + 1, 3_277, 1_638, None, "window", "standard"),
        ("auto", 1_000_000, 40_000, 20_000, None, "standard", "standard"), ("auto", 2048, 409, 204, None, "window", "local"),
    ],
)  # fmt: skip
def test_limits_are_capped_by_shares_of_the_window(
    policy: Policy, window: int, protect: int, gain: int, cap: int | None, origin: str, lines: str
) -> None:
    settings = Settings(policy=policy)
    limits, origins = prune_limits(settings, window), limit_origins(settings, "m", window)
    assert (limits.protect_newest, limits.minimum_gain, limits.answer_cap) == (protect, gain, cap)
    assert set(origins) == set(NAMES)
    assert (origins["protect_newest"], origins["lines"]) == (origin, lines)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["auto", "standard", "local"])
def test_each_limit_can_be_set_alone_and_holds_as_it_is(policy: Policy, name: Limit) -> None:
    usual = asdict(prune_limits(Settings(policy=policy), 8192))
    chosen = asdict(prune_limits(Settings(policy=policy, limits={name: 123_456}), 8192))
    assert chosen == {**usual, name: 123_456}


@pytest.mark.parametrize(
    ("chosen", "facts", "seconds"),
    [
        ({}, {}, WAIT),
        ({}, {"free": True}, 0.0),  # it is written after the answer
        ({"ahead": "on"}, {}, 0.0),
        ({"ahead": "off"}, {"free": True}, 60.0),
        ({"summary_wait": 20.0}, {"free": True}, 20.0),
        ({"summary_wait": 90.0}, {}, 60.0),
        ({"summary_wait": 20.0}, {"ahead": True}, 0.0),
        ({"summary_wait": 20.0}, {"ahead": True, "insisted": True}, 60.0),
        ({"strategy": "summarize"}, {"free": True}, 60.0),
    ],
)
def test_how_long_a_turn_waits_for_its_summary(chosen: dict[str, Any], facts: dict[str, bool], seconds: float) -> None:
    settings = Settings(read_timeout=60.0, **chosen)
    assert summary_wait(settings, **{"insisted": False, "ahead": False, "free": False} | facts) == seconds
