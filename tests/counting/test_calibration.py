from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.counting.calibration import Calibration, start
from proxy.counting.features import (
    BASE,
    FIRST,
    MESSAGES,
    NO_TEXT,
    SCRIPTS,
    SIZE,
    TEXT_SIZE,
    TOOLS,
    Vector,
    message_vector,
    request_vector,
)
from proxy.tokens.families import FAMILIES


def message(base: float, *, digits: float = 0, script: int = 0, count: float = 0) -> Vector:
    text = list(NO_TEXT)
    text[BASE], text[1] = base, digits
    if script:
        text[script] = count
    return message_vector(tuple(text), calls=0, reasoning=0, images=0, image_tokens=0)


def neutral() -> Calibration:
    return Calibration.begin(start(exact=False))


def test_begins_with_what_is_typical() -> None:
    assert 90 < neutral().predict(message(100, digits=10)) - 5 < 100, (
        "the general vocabulary is smaller than most"
    )
    assert neutral().predict(request_vector(tools=200, schema=0)) == pytest.approx(8 + 230)
    exact = Calibration.begin(start(exact=True))
    assert exact.predict(message(100, digits=10)) == pytest.approx(105)
    assert exact.deviation(message(1000)) < exact.deviation(request_vector(tools=0, schema=0))


def test_a_bare_request_is_what_its_template_begins_with() -> None:
    for first in (17.0, 0.0, -3.0):
        calibration = neutral()
        calibration.weights[FIRST] = first
        assert calibration.bare == calibration.predict(request_vector(tools=0, schema=0)) == max(0.0, first)


def test_learning_tells_how_far_off_a_prediction_may_have_been() -> None:
    calibration = neutral()
    for tokens in (140.0, 111.0, 112.0, 112.0):
        before = calibration.deviation(message(100, digits=10))
        assert calibration.update(message(100, digits=10), tokens) == pytest.approx(before)


def test_learns_the_cost_of_a_digit_and_of_a_template() -> None:
    rng, model = random.Random(1), neutral()
    for _ in range(60):
        x = message(rng.randint(50, 900), digits=rng.randint(0, 300))
        model.update(x, x[BASE] + 0.6 * x[1] + 11)
    x = message(500, digits=200)
    assert model.predict(x) == pytest.approx(500 + 120 + 11, rel=0.01)
    assert model.weights[MESSAGES] == pytest.approx(11, abs=3)


def test_what_is_certain_stays_so() -> None:
    rng, model = random.Random(2), Calibration.begin(start(exact=True))
    for _ in range(30):
        x = message(rng.randint(50, 900))
        model.update(x, x[BASE] + 9)
    assert model.weights[BASE] == pytest.approx(1, abs=0.003)
    assert model.weights[MESSAGES] == pytest.approx(9, abs=0.5)


def test_a_surprise_in_one_script_is_learned_at_once_and_changes_no_other() -> None:
    rng, model = random.Random(3), neutral()
    han, thai = SCRIPTS[11], SCRIPTS[6]
    for _ in range(100):
        x = message(rng.randint(50, 900), script=han, count=rng.randint(50, 900))
        model.update(x, x[BASE] + 5)
    for _ in range(4):
        x = message(400, script=thai, count=400)
        model.update(x, 1200)
    assert model.predict(message(400, script=thai, count=400)) == pytest.approx(1200, rel=0.1)
    assert model.predict(message(400, script=han, count=400)) == pytest.approx(405, rel=0.05)


def test_text_stays_within_bounds_whatever_was_learned() -> None:
    model = neutral()
    model.weights[BASE] = -3.0
    assert model.predict(message(100)) == 50
    model.weights[BASE] = 90.0
    assert model.predict(message(100)) == 510


def test_a_system_message_that_became_shorter_may_take_tokens_away() -> None:
    assert neutral().predict(message(-20)) == pytest.approx(5 - 20 * neutral().weights[BASE])
    assert neutral().predict(message(-20)) < 0


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5000), min_size=TEXT_SIZE, max_size=TEXT_SIZE),
            st.integers(1, 200_000),
        ),
        max_size=25,
    )
)
def test_no_report_breaks_the_weights(reports: list[tuple[list[int], int]]) -> None:
    model = neutral()
    for text, tokens in reports:
        model.update(message_vector(tuple(text), calls=1, reasoning=0, images=0, image_tokens=0), tokens)
    numbers = [*model.weights, *(value for row in model.covariance.whole() for value in row)]
    assert all(map(math.isfinite, numbers))
    assert all(model.covariance.variance(i) >= 0 for i in range(SIZE))
    assert model.deviation(message(100)) >= 0


def test_survives_a_round_trip() -> None:
    model = neutral()
    model.update(message(100), 130)
    again = Calibration.restore(model.weights, model.covariance.whole())
    assert (again.weights, again.covariance.whole()) == (model.weights, model.covariance.whole())


@pytest.mark.parametrize(
    ("weights", "rows"),
    [([1.0], [[1.0]]), ([math.nan] * SIZE, [[0.0] * SIZE] * SIZE), ([0.0] * SIZE, [[0.0] * SIZE] * 3)],
)
def test_refuses_weights_of_another_shape(weights: list[float], rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Calibration.restore(weights, rows)


def test_priors_fill_all_weights() -> None:
    for family in FAMILIES:
        if family.prior:
            assert len(family.prior) in {17, TEXT_SIZE}
            assert len(start(exact=False, prior=family.prior).weights) == SIZE


def test_tools_and_base_are_learned_from_first_requests() -> None:
    model = neutral()
    for tools in (900, 1500, 600, 1200):
        x = tuple(a + b for a, b in zip(request_vector(tools=tools, schema=0), message(100), strict=True))
        model.update(x, 100 + 5 + 35 + 0.5 * tools)
    assert model.weights[TOOLS] == pytest.approx(0.5, abs=0.05)
    assert model.weights[FIRST] > 8
