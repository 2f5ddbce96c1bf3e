import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.windows import CutSeen, room_assumed, window_behind_cut


@pytest.mark.parametrize(("completion", "room"), [(1001, 2001), (1000, 8000), (1024, 8096)])
def test_an_answer_of_a_round_length_was_bounded_and_there_is_more_room(completion: int, room: int) -> None:
    assert room_assumed(1000, completion) == room


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
