from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.counting.features import (
    NO_CLASSES,
    PLAIN_MESSAGE,
    Vector,
    add,
    message_vector,
    request_vector,
)
from proxy.counting.model import ModelCounter


def text(base: int) -> Vector:
    return (base, *NO_CLASSES, *PLAIN_MESSAGE)


def taught(*, exact: bool = True, factor: float = 1.0, count: int = 40) -> ModelCounter:
    counter = ModelCounter.begin("v", exact=exact)
    for base in (50 + 997 * n % 1900 for n in range(count)):
        counter.learn(text(base), factor * base + 7)
    return counter


def test_predicts_with_a_margin_that_narrows() -> None:
    fresh, known = ModelCounter.begin("v", exact=False).predict(text(1000)), taught().predict(text(1000))
    assert fresh.margin > 250
    assert known.margin < 50
    assert known.tokens == pytest.approx(1007, abs=3)


def test_another_vocabulary_is_found_out() -> None:
    assert not taught(factor=1.0).contradicted()
    assert taught(factor=1.2).contradicted()
    assert taught(factor=0.85).contradicted()
    assert not taught(factor=1.2, count=5).contradicted()
    assert not taught(exact=False, factor=1.2).contradicted()


def test_an_increment_without_what_a_template_dropped_teaches_nothing() -> None:
    counter = taught()
    before = list(counter.calibration.weights)
    counter.learn(text(1000), 200)
    counter.learn(text(1000), -50)
    assert counter.calibration.weights == before


def test_what_a_backend_may_leave_out_is_unsure_until_it_was_seen() -> None:
    counter = ModelCounter.begin("v", exact=True)
    x = add([request_vector(tools=1000, schema=0), text(500)])
    assert counter.unsure(x) == pytest.approx(1150)
    for tools in (1000, 2000, 500, 3000):
        counter.learn(add([request_vector(tools=tools, schema=0), text(500)]), 507 + tools)
    assert counter.unsure(x) == 0
    image = message_vector((0, *NO_CLASSES), calls=0, reasoning=0, images=1, image_tokens=800)
    assert counter.unsure(image) == pytest.approx(800)


def test_figures() -> None:
    counter = taught()
    assert counter.figures() == {"samples": 40, "p95_error": None, "bound_held": None}
    for reported in (100, 100, 100, 110):
        counter.score(100, 105, reported)
    assert counter.figures()["bound_held"] == 0.75
    assert counter.figures()["p95_error"] == pytest.approx(10 / 110, abs=1e-4)


def test_survives_a_restart() -> None:
    counter, again = taught(), ModelCounter.begin("v", exact=True)
    counter.score(100, 105, 101)
    assert again.load(json.loads(json.dumps(counter.dump())))
    assert again.predict(text(777)) == counter.predict(text(777))
    assert again.figures() == counter.figures()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0}, {"vocabulary": "w"}, {"exact": False}, {"weights": [1.0]}, {"weights": None},
        {"covariance": [[]]}, {"margin": ["x"]}, {"margin": [float("inf")]}, {"samples": None}, {"held": 3},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_taken(change: dict[str, Any]) -> None:
    counter = ModelCounter.begin("v", exact=True)
    assert not counter.load({**taught().dump(), **change})
    assert counter.samples == 0
    assert counter.predict(text(10)) == ModelCounter.begin("v", exact=True).predict(text(10))


@pytest.mark.parametrize("kept", [None, [], "x", {}])
def test_nothing_at_all_is_not_taken(kept: Any) -> None:
    assert not ModelCounter.begin("v", exact=True).load(kept)
