"""The load generator, a process of its own: reads what to do as JSON from its argument, prints the result as JSON.

It reads the CPU clocks of the target right before and after the measured part, so connecting and
warming up don't count.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.client import Answer, Client, request
from benchmarks.process import cpu_seconds, rss_mib
from benchmarks.upstream import MODEL, REPLY

VOCABULARY = ("the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are")


def _body(messages: list[dict[str, str]], **fields: Any) -> bytes:
    data = {"model": MODEL, **fields, "messages": messages}
    return json.dumps(data, separators=(",", ":")).encode()


def _checked(answer: Answer, marker: bytes, count: int = 1) -> Answer:
    body = b"".join(answer.body)
    if answer.status != 200 or body.count(marker) != count:
        sys.exit(
            f"wrong answer: {answer.status}, {body.count(marker)} of {count} {marker!r} in {body[:300]!r}"
        )
    return answer


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(VOCABULARY) if rng.random() < 0.7 else f"item{rng.randrange(10**5)}"
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


async def short(port: int, pids: list[int], *, count: int, concurrency: int) -> dict[str, Any]:
    """`count` small requests on `concurrency` connections: CPU per request, latencies."""
    clients = [await Client.connect(port) for _ in range(concurrency)]
    ask = request(_body([{"role": "user", "content": "Say something about foxes and dogs."}]))
    times: list[float] = []

    async def work(client: Client, requests: int) -> None:
        for _ in range(requests):
            answer = _checked(await client.send(ask), b'"finish_reason"')
            times.append(answer.total)

    await asyncio.gather(*(work(client, 5) for client in clients))
    times.clear()
    before = cpu_seconds(pids)
    await asyncio.gather(*(work(client, count // concurrency) for client in clients))
    used = cpu_seconds(pids) - before
    return {"cpu_us": used / len(times) * 1e6, "times_ms": [time * 1e3 for time in times]}


async def stream(port: int, pids: list[int], *, streams: int, chunks: int, pause_us: int) -> dict[str, Any]:
    """Parallel streams: CPU per chunk, and reads per chunk (below 1: chunks came joined)."""
    clients = [await Client.connect(port) for _ in range(min(streams, 8))]
    warm, ask = (
        request(_body([{"role": "user", "content": "Count."}], stream=True, user=f"bench:{number}:{pause}"))
        for number, pause in ((3, 1000), (chunks, pause_us))
    )
    for answer in await asyncio.gather(*(client.send(warm) for client in clients)):
        _checked(answer, b'"content":" word', 3)
    clients += [await Client.connect(port) for _ in range(streams - len(clients))]
    before = cpu_seconds(pids)
    answers = await asyncio.gather(*(client.send(ask) for client in clients))
    used = cpu_seconds(pids) - before
    for answer in answers:
        _checked(answer, b'"content":" word', chunks)
    return {
        "cpu_us": used / (streams * chunks) * 1e6,
        "reads_per_chunk": sum(answer.reads for answer in answers) / (streams * chunks),
        "first_ms": max(answer.first for answer in answers) * 1e3,
        "rss_mib": rss_mib(pids),
    }


async def turns(
    port: int, pids: list[int], *, count: int, messages: int, size: int, seed: int
) -> dict[str, Any]:
    """A long conversation that grows by two messages a turn: milliseconds and CPU per turn after the first."""
    rng = random.Random(seed)
    history = [{"role": "system", "content": "You are a helpful assistant."}]
    history += [
        {"role": ("user", "assistant")[number % 2], "content": _prose(rng, size)}
        for number in range(messages)
    ]
    asks: list[bytes] = []
    for _ in range(count + 1):
        history.append({"role": "user", "content": _prose(rng, size)})
        asks.append(request(_body(history)))
        history.append({"role": "assistant", "content": REPLY})
    client = await Client.connect(port)
    cold = _checked(await client.send(asks[0]), b'"finish_reason"').total
    times: list[float] = []
    before = cpu_seconds(pids)
    for ask in asks[1:]:
        times.append(_checked(await client.send(ask), b'"finish_reason"').total)
        await asyncio.sleep(
            0.01
        )  # as with a user: what is done after the answer is over before the next turn
    used = cpu_seconds(pids) - before
    return {
        "cpu_ms": used / count * 1e3,
        "cold_ms": cold * 1e3,
        "times_ms": [time * 1e3 for time in times],
        "bytes": len(asks[-1]),
    }


async def idle(port: int, pids: list[int], *, streams: int) -> dict[str, Any]:
    """Streams that have begun and say nothing more: memory each of them holds."""
    warm = await Client.connect(port)
    ask = request(_body([{"role": "user", "content": "Wait."}], stream=True, user="bench:1:0:hold"))
    answers = [warm.start(ask)]
    await _until(lambda: all(answer.body for answer in answers))
    before = rss_mib(pids)
    clients = [await Client.connect(port) for _ in range(streams)]
    answers += [client.start(ask) for client in clients]
    await _until(lambda: all(answer.body for answer in answers))
    await asyncio.sleep(0.2)
    held = rss_mib(pids) - before
    cpu = cpu_seconds(pids)
    await asyncio.sleep(1.0)
    busy = cpu_seconds(pids) - cpu
    for client in (warm, *clients):
        client.close()
    return {"kib_per_stream": held * 1024 / streams, "cpu_percent": busy * 100}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - polled, to keep the client's callbacks bare
            await asyncio.sleep(0.01)


LOADS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "short": short,
    "stream": stream,
    "turns": turns,
    "idle": idle,
}


async def main(order: dict[str, Any]) -> None:
    result = await LOADS[order["load"]](order["port"], order["pids"], **order["arguments"])
    print(json.dumps(result))


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
