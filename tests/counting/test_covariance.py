from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.counting.covariance import Covariance, dot
from proxy.counting.features import SIZE

VARIANCES = [0.01 * (1 + feature) for feature in range(SIZE)]
FEATURES = st.dictionaries(st.integers(0, SIZE - 1), st.floats(-2, 2), max_size=6)


def vector(features: dict[int, float]) -> tuple[float, ...]:
    return tuple(features.get(feature, 0.0) for feature in range(SIZE))


def explained(covariance: Covariance, x: tuple[float, ...], noise: float) -> None:
    part = covariance.part(x)
    gain = covariance.times(part)
    covariance.explain(gain, dot(gain, part) + noise)


@given(st.lists(FEATURES, max_size=8))
def test_is_what_the_whole_matrix_would_be(observations: list[dict[int, float]]) -> None:
    covariance = Covariance(VARIANCES)
    rows = covariance.whole()
    for x in map(vector, observations):
        explained(covariance, x, 0.1)
        gain = [dot(row, x) for row in rows]
        variance = dot(gain, x) + 0.1
        rows = [
            [value - own * other / variance for value, other in zip(row, gain, strict=True)]
            for row, own in zip(rows, gain, strict=True)
        ]
    assert [value for row in covariance.whole() for value in row] == pytest.approx(
        [value for row in rows for value in row], abs=1e-9
    )
    again = Covariance.restore(covariance.whole())
    assert again.whole() == covariance.whole()
    for x in map(vector, observations):
        part, other = covariance.part(x), again.part(x)
        assert dot(covariance.times(part), part) == pytest.approx(dot(again.times(other), other))


def test_what_is_doubted_is_open_again_and_what_is_certain_is_not() -> None:
    covariance = Covariance([0.0, *VARIANCES[1:]])
    for feature in (1, SIZE - 1):
        covariance.widen(feature, 0.005)
        assert covariance.variance(feature) == VARIANCES[feature], "it was wide enough"
        covariance.widen(feature, 5.0)
        assert covariance.variance(feature) == 5.0
    explained(covariance, vector({0: 1.0, 1: 1.0}), 0.1)
    assert covariance.variance(1) < 0.2
    covariance.drift([0.5] * len(covariance.met))
    assert (covariance.variance(0), covariance.variance(1) > 0.5) == (0.0, True)
