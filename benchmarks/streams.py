"""The loads of streamed answers. Every one of them is read to its end and checked word by word, after the clocks were read."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.checking import fault, fault_resumed, said
from benchmarks.client import Answer, Client, chat, until
from benchmarks.process import cpu_seconds, rss_mib

SMALL = "bench-small"
"""The model whose window the targets that can go on with an answer are told to be SMALL_WINDOW tokens."""
SMALL_WINDOW = 8192


def _ask(order: str, **fields: Any) -> bytes:
    return chat([{"role": "user", "content": f"bench:{order}"}], stream=True, **fields)


async def stream(port: int, pids: list[int], *, streams: int, chunks: int, pause_us: int) -> dict[str, Any]:
    """Parallel streams: CPU per chunk, reads per chunk (below 1: chunks came joined), and how many came wrong."""
    clients = [await Client.connect(port) for _ in range(min(streams, 8))]
    await asyncio.gather(*(client.send(_ask("3:1000")) for client in clients))
    clients += [await Client.connect(port) for _ in range(streams - len(clients))]
    ask = _ask(f"{chunks}:{pause_us}")
    started, before = perf_counter(), cpu_seconds(pids)
    answers = [client.start(ask) for client in clients]
    await _all_finished(clients)
    used, took = cpu_seconds(pids) - before, perf_counter() - started
    words = said(chunks)
    return {
        "cpu_us": used / (streams * chunks) * 1e6,
        "cpu_percent": used / took * 100,
        "reads_per_chunk": sum(answer.reads for answer in answers) / (streams * chunks),
        "first_ms": max(answer.first for answer in answers) * 1e3,
        "rss_mib": rss_mib(pids),
        "bad": _bad(answers, lambda answer: fault(answer, words)),
    }


async def first_byte(port: int, pids: list[int], *, count: int) -> dict[str, Any]:
    """Short streams one after the other: milliseconds until the first byte of the body."""
    client = await Client.connect(port)
    ask, words = _ask("2:0"), said(2)
    for _ in range(5):
        await client.send(ask)
    before = cpu_seconds(pids)
    answers = [await client.send(ask) for _ in range(count)]
    used = cpu_seconds(pids) - before
    return {
        "cpu_us": used / count * 1e6,
        "times_ms": [answer.first * 1e3 for answer in answers],
        "bad": _bad(answers, lambda answer: fault(answer, words)),
    }


async def idle(port: int, pids: list[int], *, streams: int) -> dict[str, Any]:
    """Streams that have begun and say nothing more: memory each of them holds."""
    warm = await Client.connect(port)
    ask = _ask("1:0:hold")
    answers = [warm.start(ask)]
    await until(lambda: all(answer.body for answer in answers))
    before = rss_mib(pids)
    clients = [await Client.connect(port) for _ in range(streams)]
    answers += [client.start(ask) for client in clients]
    await until(lambda: all(answer.body for answer in answers))
    await asyncio.sleep(0.2)
    held = rss_mib(pids) - before
    cpu = cpu_seconds(pids)
    await asyncio.sleep(1.0)
    busy = cpu_seconds(pids) - cpu
    for client in (warm, *clients):
        client.close()
    return {"kb_per_stream": held * 1048.576 / streams, "cpu_percent": busy * 100}


async def resumed(
    port: int, pids: list[int], *, streams: int, chunks: int, pause_us: int, resumes: bool
) -> dict[str, Any]:
    """Parallel answers from their later attempt's second chunk on: CPU per chunk.

    The window of a target that `resumes` fills up, so it asks for the later attempt itself; the others pass the same
    frames through, because they are asked for them.
    """
    order = f"{chunks}:{pause_us}:resume:{streams}:{os.getpid()}"
    going_on = {"continue_final_message": True, "add_generation_prompt": False, "timings_per_token": True}
    ask = _ask(order, model=SMALL) if resumes else _ask(order, **going_on)
    clients = [await Client.connect(port) for _ in range(streams)]
    answers = [client.start(ask) for client in clients]
    await until(lambda: all(map(_goes_on, answers)))
    before, reads = cpu_seconds(pids), sum(answer.reads for answer in answers)
    if any(b" more0" in piece for answer in answers for piece in answer.body[-3:]):
        sys.exit("the machine was too busy to read the clocks in time")
    await _all_finished(clients)
    used = cpu_seconds(pids) - before
    return {
        "cpu_us": used / (streams * chunks) * 1e6,
        "reads_per_chunk": (sum(answer.reads for answer in answers) - reads) / (streams * chunks),
        "bad": _bad(answers, lambda answer: fault_resumed(answer, chunks, paused=resumes)),
    }


def _goes_on(answer: Answer) -> bool:
    return b" after-" in b"".join(answer.body[-3:])


async def _all_finished(clients: list[Client]) -> None:
    ends = await asyncio.gather(*(client.finished() for client in clients), return_exceptions=True)
    if strange := [end for end in ends if isinstance(end, BaseException) and not isinstance(end, OSError)]:
        raise strange[0]


def _bad(answers: list[Answer], fault_of: Callable[[Answer], str]) -> int:
    faults = Counter(filter(None, map(fault_of, answers)))
    for text, times in faults.most_common(3):
        print(f"bad stream, {times} times: {text}", file=sys.stderr)
    return faults.total()
