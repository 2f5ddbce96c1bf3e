"""Shipped vocabularies count what the models' own tokenizers count: see make_golden.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.tokens.families import FAMILIES
from tests.tokens.conftest import Shipped
from tests.tokens.probe import probe, sections

GOLDEN: dict[str, list[int]] = json.loads((Path(__file__).parent / "golden.json").read_text())


def test_every_vocabulary_that_is_a_models_own_has_golden_counts() -> None:
    assert set(GOLDEN) == {family.id for family in FAMILIES if family.load is not None and not family.prior}
    assert {len(counts) for counts in GOLDEN.values()} == {len(probe())}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_counts_are_exact(name: str, shipped: Shipped) -> None:
    vocabulary = shipped(name)
    different = [
        (text, vocabulary.count(text), count)
        for text, count in zip(probe(), GOLDEN[name], strict=True)
        if vocabulary.count(text) != count
    ]
    assert different == []


def test_the_probe_is_wide() -> None:
    text = "".join(probe())
    assert len(probe()) > 200
    assert len(text.encode()) > 40_000
    assert {"english", "chinese", "japanese", "korean", "arabic", "hindi", "emoji", "base64"} < set(
        sections()
    )
