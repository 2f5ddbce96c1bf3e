"""Which backend serves which model, and what is said of models that none does."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.fakes import FakeModel, VllmFake
from tests.proxying import running_proxy


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({"summary_model": "small"}, []),
        (
            {"summary_model": "Smal"},
            ["SPILLWAY_SUMMARY_MODEL=Smal: no backend lists this model; the nearest are small"],
        ),
        (
            {"recall_model": "small", "models": {"*": {"recall_model": "8"}}},
            ["SPILLWAY_RECALL_MODEL=8: no backend lists this model"],
        ),
        ({"summary_model": "9999"}, ["SPILLWAY_SUMMARY_MODEL=9999: no backend lists this model"]),
        ({"models": {"*": {"summary_model": "9999"}}}, ["SPILLWAY_SUMMARY_MODEL=9999: no backend lists this model"]),
    ],
)
def test_a_summary_model_that_nobody_lists_is_warned_of_once(
    settings: dict[str, Any], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        VllmFake([FakeModel("large"), FakeModel("small")]) as fake,
        running_proxy(fake, profile_ttl=0.001, **settings) as proxy,
    ):
        for _ in range(3):
            proxy.client.get("/v1/models")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == warnings
