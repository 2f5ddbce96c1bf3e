"""Counting against the real llama-server: the usage that it reports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.counting_accuracy import follow, percentile
from benchmarks.counting_corpus import conversation
from proxy.tokens.meter import Meter
from tests.engine.fixtures import StartEngine, engine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec

__all__ = ["engine"]

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

SPEC = ModelSpec(mode="walk")
KEY = ("llama.cpp", "walk")
ENGLISH = (0, 3, 9)
"""Conversations without other languages, which a vocabulary of 4,096 tokens does not know."""


@pytest.fixture(scope="module")
def server(engine: StartEngine) -> Engine:
    return engine(SPEC, ctx=32768)


def usage(server: Engine, messages: list[dict[str, Any]]) -> int:
    return int(server.chat(messages, max_tokens=1)["usage"]["prompt_tokens"])


async def errors(server: Engine, meter: Meter, turns: int) -> tuple[list[float], list[float], list[bool]]:
    async def truth(messages: list[dict[str, Any]]) -> int:
        return await asyncio.to_thread(usage, server, messages)

    found = [await follow(meter, KEY, conversation(seed, turns, size=200), truth) for seed in ENGLISH]
    fresh = [error for one in found for error in one.fresh][5:]
    anchored = [error for one in found for error in one.anchored][5:]
    return fresh, anchored, [held for one in found for held in one.held]


async def test_reports_anchor_and_calibrate(server: Engine) -> None:
    meter = Meter()
    await meter.warm()
    fresh, anchored, held = await errors(server, meter, turns=12)
    assert meter.describe(KEY)["source"] == "calibrated"
    assert percentile(anchored, 0.95) <= 0.05
    assert percentile(fresh, 0.95) <= 0.2
    assert sum(held) / len(held) >= 0.9
