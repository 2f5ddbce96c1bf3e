from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.counting.filling import SMALLEST_WINDOW, Filled, window_filled


@pytest.mark.parametrize(
    ("prompt", "completion", "window"),
    [
        (1000, 7192, 8192),
        (1001, 7190, 8192),  # it stopped one token short
        (1001, 7192, 8193),
        (1000, 5555, 6555),
        (9, 16, None),
    ],
)
def test_two_answers(prompt: int, completion: int, window: int | None) -> None:
    seen = Filled(prompt, completion)
    assert window_filled(seen, []) is None
    assert window_filled(seen, [seen]) is None, "the same prompt again"
    assert window_filled(seen, [Filled(prompt + 40, completion - 40)]) == window


def test_the_same_total_of_prompts_that_differ_is_a_window() -> None:
    before = [Filled(100, 2000), Filled(1000, 5000)]
    assert window_filled(Filled(1500, 4501), before) == 6001
    assert window_filled(Filled(1001, 4999), before) is None  # the same prompt again


@given(st.integers(SMALLEST_WINDOW, 10**6), st.data())
def test_a_filled_window_is_known_after_two_answers_and_never_smaller(
    window: int, data: st.DataObject
) -> None:
    prompts = data.draw(st.lists(st.integers(1, window - 1), min_size=2, max_size=4))
    assume(max(prompts) - min(prompts) >= 16)
    seen = [Filled(prompt, window - prompt) for prompt in prompts]
    told = [window_filled(one, seen[:number]) for number, one in enumerate(seen)]
    assert any(told)
    assert all(window <= one <= window + 2 for one in told if one is not None)


@given(st.sampled_from([64, 100, 256, 1000, 1024, 4000, 4096]), st.lists(st.integers(1, 10**5), max_size=6))
def test_a_bound_of_the_server_is_no_window(bound: int, prompts: list[int]) -> None:
    seen = [Filled(prompt, bound) for prompt in prompts]
    assert all(window_filled(one, seen[:number]) is None for number, one in enumerate(seen))
