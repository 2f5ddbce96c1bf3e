import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.models import Expectation, Observation, verdict_on

ACCEPTED, REJECTED, CUT = Observation.ACCEPTED, Observation.REJECTED, Observation.CUT


def expect(anchor: int, predicted: float, *, margin: float = 0) -> Expectation:
    return Expectation(anchor, predicted, margin, trusted=True)


ROWS: dict[int | None, list[tuple[Expectation, int, Observation]]] = {
    # of a window that nobody knows
    None: [
        (expect(0, 1000), 1100, ACCEPTED),
        (expect(0, 1000), 3000, ACCEPTED),  # an unknown script
        (expect(0, 1000), 800, ACCEPTED),
        (expect(0, 1000), 650, REJECTED),
        (expect(0, 1000, margin=400), 600, ACCEPTED),
        (expect(0, 40), 12, ACCEPTED),  # too small to tell
        (expect(9000, 400), 9800, ACCEPTED),
        (expect(9000, 400), 8500, REJECTED),  # it falls where the prompt grew
        (expect(9000, 400), 400, REJECTED),  # the cached part was left out
        (expect(9000, 400), 0, REJECTED),
        (expect(9000, 400), -5, REJECTED),
        (expect(9000, 400), 4700, CUT),
        (expect(0, 9400), 2050, CUT),
        (expect(0, 9400, margin=8000), 2050, ACCEPTED),  # tools that the backend ignores
        (expect(0, 600), 300, REJECTED),
    ],
    # half of a window is where a prompt is cut, unless it fits by any reading
    4096: [
        (expect(4000, 300), 2050, CUT),
        (expect(4000, 300), 2046, CUT),
        (expect(0, 4300, margin=100), 2054, CUT),
        (expect(0, 2600, margin=100), 2054, ACCEPTED),  # a prompt that fits is never cut
        (expect(0, 2060), 2050, ACCEPTED),  # it is as long as that
        (expect(1900, 180), 2050, ACCEPTED),
        (expect(0, 2600, margin=800), 2050, ACCEPTED),
        (expect(0, 2600), 2100, ACCEPTED),
        (expect(3000, 700), 2050, REJECTED),
        (expect(0, 5000, margin=1000), 2050, REJECTED),
    ],
    16_384: [(expect(0, 1550), 525, REJECTED), (expect(9000, 400), 4700, REJECTED), (expect(0, 20_000), 2050, CUT)],
}


@pytest.mark.parametrize(
    ("window", "expected", "reported", "verdict"), [(window, *row) for window, rows in ROWS.items() for row in rows]
)
def test_verdicts(window: int | None, expected: Expectation, reported: int, verdict: Observation) -> None:
    assert verdict_on(expected, reported, window) is verdict


@given(
    st.integers(0, 10**6), st.floats(0, 10**6), st.floats(0, 10**6),
    st.integers(-5, 10**7), st.none() | st.integers(256, 10**6),
)  # fmt: skip
def test_a_backend_that_refuses_what_is_too_long_never_cuts(
    anchor: int, predicted: float, margin: float, reported: int, window: int | None
) -> None:
    expected = expect(anchor, predicted, margin=margin)
    assert verdict_on(expected, reported, window, may_cut=False) is not CUT


def test_of_an_unknown_model_a_low_report_is_only_doubted() -> None:
    unknown = Expectation(0, 9000, 200, trusted=False)
    assert verdict_on(unknown, 3000, None) is REJECTED
