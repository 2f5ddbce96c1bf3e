"""The counting benchmark runs, and its figures that do not depend on the machine hold."""

from __future__ import annotations

import pytest

from benchmarks.counting import Row, accuracy_rows, golden
from benchmarks.counting_accuracy import Figures, follow, percentile, rendered, requests
from benchmarks.counting_corpus import LANGUAGES, Corpus, conversation
from benchmarks.counting_speed import start
from proxy.tokens.meter import Meter
from tests.tokens.conftest import loaded

pytestmark = pytest.mark.anyio


def test_golden_counts() -> None:
    assert [row.value for row in golden()] == [0]


@pytest.mark.parametrize(("name", "aim"), [("qwen3", 0.005), ("some-model", 0.05)])
async def test_accuracy_over_conversations(name: str, aim: float) -> None:
    meter, found = Meter(), Figures()
    await meter.warm()
    for seed in range(24):
        one = await follow(meter, ("b", name), conversation(seed, 4 + seed % 9), rendered(loaded("qwen")))
        if seed >= 5:
            found.add(one)
    assert percentile(found.fresh, 0.95) <= aim
    assert percentile(found.anchored, 0.95) <= 0.015
    assert sum(found.held) / len(found.held) >= 0.985
    assert sum(found.reserve) / len(found.reserve) <= 0.04
    assert len(accuracy_rows(name, found, fresh=100 * aim, anchored=1.5)) == 5


def test_a_missed_aim_is_marked() -> None:
    assert "missed" in Row("x", 2, most=1).line()
    assert "missed" in Row("x", 2, least=3).line()
    assert "missed" not in Row("x", 2, most=2, least=2).line()


def test_texts_are_the_same_at_every_run() -> None:
    assert conversation(5, 3) == conversation(5, 3)
    for kind in (*LANGUAGES, "prose", "code", "json", "logs", "csv", "base64", "emoji"):
        assert len(Corpus(1).text(kind, 500)) > 300
    sent = list(requests(conversation(4, 5)))
    assert len(sent) >= 5
    assert all(one[-1]["role"] in {"user", "tool"} for one in sent)


def test_a_cold_start_needs_no_network_and_little_memory() -> None:
    seconds, memory = start()
    assert seconds < 10
    assert 20 < memory < 110
