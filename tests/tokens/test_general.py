"""The vocabulary that stands in for unknown ones: as good as the whole that it is the beginning of, in a third of the memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxy.counting.calibration import start
from proxy.counting.covariance import dot
from proxy.counting.features import TEXT_SIZE
from proxy.tokens.families import MOST, load_general
from proxy.tokens.vocabulary import text_vector
from tests.tokens.probe import probe, sections

GOLDEN: dict[str, list[int]] = json.loads((Path(__file__).parent / "golden.json").read_text())
UNKNOWN = ("cl100k", "qwen", "deepseek", "tekken", "mistral")
"""Vocabularies that a model of which nothing is known may have."""
ONE_FOR_ONE = (1.0, 0.1)
"""Weights of tokens and digits with which a model would begin on the whole of o200k."""
LEAST = 20
"""Tokens of the texts that are compared."""
_MEMORY = """
from proxy.tokens.families import BY_ID, load_general
def resident():
    return int(open("/proc/self/statm").read().split()[1])
before = resident()
load_general()
general = resident()
BY_ID["o200k"].load()
print((general - before) / (resident() - general))
"""


def errors(weights: tuple[float, ...], vectors: Sequence[tuple[float, ...]]) -> float:
    """The mean relative error over all vocabularies and texts."""
    found = [
        abs(dot(weights, x) / count - 1)
        for name in UNKNOWN
        for x, count in zip(vectors, GOLDEN[name], strict=True)
        if count >= LEAST
    ]
    return sum(found) / len(found)


def test_unknown_vocabularies_are_counted_no_worse_than_from_all_of_o200k() -> None:
    vectors = [text_vector(load_general(), text, exact=False) for text in probe()]
    whole = [(count, x[1]) for count, x in zip(GOLDEN["o200k"], vectors, strict=True)]
    cold = start(exact=False).weights[:TEXT_SIZE]
    assert errors(cold, vectors) < errors(ONE_FOR_ONE, whole) < 0.2


def test_no_language_is_taken_for_much_less_than_it_is() -> None:
    cold = start(exact=False).weights[:TEXT_SIZE]
    for name, text in sections().items():
        x = text_vector(load_general(), text, exact=False)
        assert 0.6 < dot(cold, x) / x[0] < 1.3, name


def test_it_is_a_vocabulary_of_its_own_size() -> None:
    assert load_general().count("hello world") == 2
    assert load_general().count("\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0") > 3, (
        "a word that comes late"
    )
    assert load_general().id not in GOLDEN
    assert MOST < 2**16


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_it_takes_less_than_half_of_the_memory_of_the_whole() -> None:
    run = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.5
