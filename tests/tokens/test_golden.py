"""Shipped vocabularies count what the models' own tokenizers count: see make_golden.py."""

import itertools
import json
from pathlib import Path

import pytest

from proxy.tokens.families import FAMILIES, GENERAL, VOCABULARIES
from proxy.tokens.meter import Meter
from proxy.tokens.vocabulary import Library
from tests.tokens.conftest import Shipped
from tests.tokens.probe import probe, sections

LIBRARY = Library()
NEAR: dict[str, list[int]] = json.loads((Path(__file__).parent / "near.json").read_text())
GOLDEN: dict[str, list[int]] = json.loads((Path(__file__).parent / "golden.json").read_text())


def test_every_vocabulary_that_is_a_models_own_has_golden_counts() -> None:
    assert VOCABULARIES.keys() - {GENERAL} == {each.vocabulary for each in FAMILIES}
    assert set(GOLDEN) == VOCABULARIES.keys() - {GENERAL, *NEAR}
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


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(NEAR, ("english", "python", "javascript", "rust", "shell", "json", "logs", "csv")),
        *itertools.product(
            ("llama2",), ("russian", "greek", "arabic", "hindi", "chinese", "traditional", "japanese", "korean")
        ),
        *itertools.product(("llama3",), ("spanish", "french", "russian", "hebrew", "korean", "traditional")),
    ],
)
async def test_families_counted_by_another_vocabulary_are_near(name: str, kind: str) -> None:
    """Llama 3 by cl100k with some of o200k and Llama 2 by some of Mistral's pieces, before a backend has reported anything."""
    meter, text = Meter(library=LIBRARY), sections()[kind]
    await meter.measure(("local", name), {})
    true = dict(zip(probe(), NEAR[name], strict=True))[text]
    assert meter.count_text(("local", name), text) == pytest.approx(true, rel=0.025)


def test_the_probe_is_wide() -> None:
    text = "".join(probe())
    assert len(probe()) > 200
    assert len(text.encode()) > 40_000
    assert {"english", "chinese", "japanese", "korean", "arabic", "hindi", "emoji", "base64"} < set(sections())
