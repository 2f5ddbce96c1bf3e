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
from itertools import cycle
from typing import Any

import uvloop

from benchmarks.canned import REPLY
from benchmarks.client import Answer, Client, chat
from benchmarks.dialects import dialects
from benchmarks.process import cpu_seconds
from benchmarks.streams import first_byte, idle, resumed, stream

FOXES = "Say something about foxes and dogs."
VOCABULARY = ("the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are")


def _checked(answer: Answer) -> Answer:
    body = b"".join(answer.body)
    if answer.status != 200 or body.count(b'"finish_reason"') != 1:
        sys.exit(f"wrong answer: {answer.status}, {body[:300]!r}")
    return answer


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(VOCABULARY) if rng.random() < 0.7 else f"item{rng.randrange(10**5)}"
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


async def short(
    port: int, pids: list[int], *, count: int, concurrency: int, size: int = 0, seed: int = 0
) -> dict[str, Any]:
    """`count` small requests on `concurrency` connections: CPU per request, latencies.

    All ask the same, or each something new of about `size` characters.
    """
    clients = [await Client.connect(port) for _ in range(concurrency)]
    rng = random.Random(seed)
    texts = [_prose(rng, size) for _ in range(count + 5 * concurrency)] if size else [FOXES]
    asks = cycle([chat([{"role": "user", "content": text}]) for text in texts])
    times: list[float] = []

    async def work(client: Client, requests: int) -> None:
        for _ in range(requests):
            answer = _checked(await client.send(next(asks)))
            times.append(answer.total)

    await asyncio.gather(*(work(client, 5) for client in clients))
    times.clear()
    before = cpu_seconds(pids)
    await asyncio.gather(*(work(client, count // concurrency) for client in clients))
    used = cpu_seconds(pids) - before
    return {"cpu_us": used / len(times) * 1e6, "times_ms": [time * 1e3 for time in times]}


async def turns(port: int, pids: list[int], *, count: int, messages: int, size: int, seed: int) -> dict[str, Any]:
    """A long conversation that grows by two messages a turn: milliseconds and CPU per turn after the first."""
    rng = random.Random(seed)
    history = [{"role": "system", "content": "You are a helpful assistant."}]
    history += [{"role": ("user", "assistant")[number % 2], "content": _prose(rng, size)} for number in range(messages)]
    asks: list[bytes] = []
    for _ in range(count + 1):
        history.append({"role": "user", "content": _prose(rng, size)})
        asks.append(chat(history))
        history.append({"role": "assistant", "content": REPLY})
    client = await Client.connect(port)
    cold = _checked(await client.send(asks[0])).total
    times: list[float] = []
    before = cpu_seconds(pids)
    for ask in asks[1:]:
        times.append(_checked(await client.send(ask)).total)
        await asyncio.sleep(0.01)  # as with a user: what is done after the answer is over before the next turn
    used = cpu_seconds(pids) - before
    return {
        "cpu_ms": used / count * 1e3,
        "cold_ms": cold * 1e3,
        "times_ms": [time * 1e3 for time in times],
        "bytes": len(asks[-1]),
    }


LOADS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "short": short,
    "turns": turns,
    "stream": stream,
    "first_byte": first_byte,
    "idle": idle,
    "resumed": resumed,
    "dialects": dialects,
}


async def main(order: dict[str, Any]) -> None:
    result = await LOADS[order["load"]](order["port"], order["pids"], **order["arguments"])
    print(json.dumps(result))


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
