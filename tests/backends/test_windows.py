from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.backends.windows import SMALLEST_WINDOW, CutSeen, Filled, window_behind_cut, window_filled


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


@given(st.integers(SMALLEST_WINDOW, 10**6), st.data())
def test_a_filled_window_is_known_after_two_answers_and_never_smaller(window: int, data: st.DataObject) -> None:
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


@pytest.mark.parametrize(
    ("reported", "window"),
    [
        (2050, 4096),  # half of it and two
        (1026, 2048),
        (8194, 16_384),
        (3900, 4096),  # whole messages were dropped
        (2030, 2048),
        (525, 2048),
        (2**21, None),
    ],
)
def test_the_window_behind_a_cut(reported: int, window: int | None) -> None:
    assert window_behind_cut(reported) == window


def seen(estimated: int, reported: int, conversation: bytes = b"a") -> CutSeen:
    return CutSeen(estimated, reported, conversation)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (seen(6500, 1990), seen(9000, 2040)),  # a longer prompt, and as much is left of it
        (seen(6500, 2040), seen(9000, 1026)),  # and even less
        (seen(3000, 1026), seen(3000, 1026, b"b")),  # exactly half, twice
    ],
)
def test_cuts_that_bear_each_other_out(one: CutSeen, other: CutSeen) -> None:
    assert one.bears_out(other)
    assert other.bears_out(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (seen(1550, 525), seen(6000, 2030, b"b")),  # the counter is off
        (seen(1550, 525), seen(1550, 525, b"b")),  # it may be
        (seen(1550, 525), seen(1600, 525)),
        (seen(3000, 1026), seen(3000, 1026)),  # the same prompt once more is no other observation
        (seen(3000, 1026), seen(3000, 2050, b"b")),
    ],
)
def test_what_a_counter_that_is_off_explains_as_well(one: CutSeen, other: CutSeen) -> None:
    assert not one.bears_out(other)
    assert not other.bears_out(one)


@given(st.integers(600, 10**6), st.floats(1.25, 100), st.floats(0.05, 0.58))
def test_a_counter_that_is_off_by_a_factor_never_shows_a_window(estimated: int, times: float, share: float) -> None:
    longer = round(estimated * times) + 1
    one, other = seen(estimated, round(estimated * share)), seen(longer, round(longer * share), b"b")
    assert not one.bears_out(other)
