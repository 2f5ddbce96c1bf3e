"""What recall costs on a warm turn of a long conversation, beside reading the request that brings it."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import orjson

from proxy.tokens.meter import Meter
from tests.pipeline.test_recalling import ASK, FACT, talk
from tests.pipeline.test_recalling_bounds import Stand, recaller_of

TOKENS = 100_000
_TURNS = 7


def _history() -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": FACT}, {"role": "assistant", "content": "How nice!"}]
    while len(messages) * 26 < TOKENS:
        messages += [{**m, "content": f"{m['content']} in part{len(messages)}"} for m in talk(26)]
    return [*messages[: len(messages) // 2 * 2], {"role": "user", "content": ASK}]


async def _measured() -> tuple[float, float]:
    """Seconds of CPU, the medians of some turns: of recall, and of reading the request's JSON."""
    meter = Meter()
    await meter.measure(("", ""), {})
    recaller, messages = recaller_of(meter), _history()
    covered, recalls, reads = len(messages) - 20, [], []
    for number in range(_TURNS):
        job = await Stand(meter, messages, covered).start()
        began = time.process_time()
        await recaller.enrich(job)  # type: ignore[arg-type]
        recalls.append(time.process_time() - began)
        body = orjson.dumps(messages)
        began = time.process_time()
        orjson.loads(body)
        reads.append(time.process_time() - began)
        messages = [
            *messages,
            {"role": "assistant", "content": "I see."},
            {**messages[-1], "content": f"{messages[-1]['content']} {number}"},
        ]
    return median(recalls[1:]), median(reads[1:])


def cost() -> str:
    """A line that tells both, and their ratio."""
    recall, read = asyncio.run(_measured())
    return (
        f"recall on a warm turn of {TOKENS // 1000}k tokens: {1000 * recall:.1f} ms of CPU, "
        f"{recall / read:.1f} times reading the request's JSON (aim: at most 5 ms)"
    )
