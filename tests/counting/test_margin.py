from __future__ import annotations

import random

from proxy.counting.margin import ROOM, Margin


def test_is_wide_at_first() -> None:
    margin = Margin(early=0.3, enough=20)
    assert margin.of(1000, 5) == 300
    assert margin.of(10, 50) > 150
    assert margin.of(0, 0) > ROOM


def test_holds_for_nearly_all_and_is_narrow_for_small_errors() -> None:
    rng, margin = random.Random(1), Margin(early=0.3, enough=20)
    held = []
    for _ in range(1000):
        error = rng.gauss(0, 10)
        held.append(error <= margin.of(1000, 3))
        margin.learn(error / margin.scale(1000, 3))
    assert sum(held) >= 985
    assert 20 < margin.of(1000, 3) < 60


def test_grows_with_what_the_weights_leave_open() -> None:
    margin = Margin(early=0.05, enough=5)
    for _ in range(10):
        margin.learn(0.0)
    assert margin.of(1000, 200) > 5 * margin.of(1000, 5)


def test_continues_where_it_was() -> None:
    margin, again = Margin(early=0.3, enough=3), Margin(early=0.3, enough=3)
    for error in (0.5, 2.5, 1.0, 4.0):
        margin.learn(error)
    again.restore(margin.errors)
    assert again.of(500, 10) == margin.of(500, 10)
