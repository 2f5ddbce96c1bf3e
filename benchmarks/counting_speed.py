"""How fast counting is, how little it holds up, and what a cold start costs."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from benchmarks.counting_corpus import Corpus
from proxy.tokens.families import GENERAL, VOCABULARIES
from proxy.tokens.meter import Meter

KEY = ("local", "unknown")
START = """
import re, socket, time
from pathlib import Path
begun = time.perf_counter()
def refuse(*args, **kwargs):
    raise OSError("no network")
from proxy.tokens.families import GENERAL, VOCABULARIES
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
assert VOCABULARIES[GENERAL]().count("hello world") == 2
seconds = time.perf_counter() - begun
print(seconds, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def body(messages: int = 200, size: int = 2000) -> bytes:
    """A request with a long history: 400 kB."""
    corpus = Corpus(1)
    kinds = ("prose", "code", "json", "logs", "chinese", "german")
    said = [
        {"role": ("user", "assistant")[n % 2], "content": corpus.text(kinds[n % len(kinds)], size)}
        for n in range(messages)
    ]
    return json.dumps({"model": "m", "messages": said}, ensure_ascii=False).encode()


async def _median(run: Callable[[Any], Awaitable[Any]], inputs: list[Any]) -> float:
    taken = []
    for item in inputs:
        begun = time.perf_counter()
        await run(item)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


async def histories() -> dict[str, float]:
    """Milliseconds for a 400 kB history: parsed, counted from scratch, known, and with one new message."""
    raw = body()
    copies = [orjson.loads(raw) for _ in range(41)]

    async def parse(data: bytes) -> None:
        orjson.loads(data)

    async def scratch(request: dict[str, Any]) -> None:
        await (await _warm()).measure(KEY, request)

    meter = await _warm()
    await meter.measure(KEY, copies[0])
    corpus = Corpus(2)
    longer = [
        {**copy, "messages": [*copy["messages"], {"role": "user", "content": corpus.text("prose", 2500)}]}
        for copy in copies[:20]
    ]
    short = [{"messages": [{"role": "user", "content": f"Hello {n}, how are you?"}]} for n in range(500)]
    return {
        "parse": 1e3 * await _median(parse, [raw] * 40),
        "scratch": 1e3 * await _median(scratch, copies[:10]),
        "warm": 1e3 * await _median(lambda request: meter.measure(KEY, request), copies[1:]),
        "one_more": 1e3 * await _median(lambda request: meter.measure(KEY, request), longer),
        "short_us": 1e6 * await _median(lambda request: meter.measure(KEY, request), short),
    }


async def _warm() -> Meter:
    meter = Meter()
    await meter.measure(KEY, {})
    return meter


async def lag(text: str) -> float:
    """Longest that the event loop stood still, in ms, while a message of 1 MB was counted; best of three."""
    worst = []
    for _ in range(3):
        meter, longest = await _warm(), 0.0
        counting = asyncio.ensure_future(meter.measure(KEY, {"messages": [{"role": "user", "content": text}]}))
        while not counting.done():
            begun = time.perf_counter()
            await asyncio.sleep(0.0005)
            longest = max(longest, time.perf_counter() - begun - 0.0005)
        worst.append(1e3 * longest)
    return min(worst)


def slowest() -> float:
    """Time for 1 MB of one character over that for 1 MB of prose, the worst of several."""
    vocabulary = VOCABULARIES[GENERAL]()

    def seconds(text: str) -> float:
        begun = time.perf_counter()
        vocabulary.count(text)
        return time.perf_counter() - begun

    prose = seconds(Corpus(3).text("prose", 1_000_000))
    alone = [char * (1_000_000 // len(char.encode())) for char in ("a", " ", "\n", "7", "=", "漢", "😂", "\u200d")]
    return max(map(seconds, alone)) / prose


def start() -> tuple[float, float]:
    """Seconds from a new process to its first count, and its memory in MiB; with the network refused."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory
