"""What it costs that somebody looks: CPU per chunk of many streams, with a viewer of the live feed and without.

`python -m benchmarks.looking [ROUNDS]`. Rounds take turns, so that both suffer alike from what else the machine does. The streams
are conversations of their own, at the pace of a fast local model, so that chunks come one by one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.client import Client, chat
from benchmarks.process import cpu_seconds
from benchmarks.targets import started

STREAMS, CHUNKS, PAUSE_US = 200, 200, 50_000
ROUNDS = 5
_FEED = b"GET /spillway/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def asked(number: int) -> bytes:
    """A conversation that is no other's."""
    said = [("user", f"Conversation {number}"), ("assistant", "Yes?"), ("user", f"bench:{CHUNKS}:{PAUSE_US}")]
    return chat([{"role": role, "content": text} for role, text in said], stream=True)


@asynccontextmanager
async def viewers(port: int, number: int) -> AsyncIterator[list[int]]:
    """So many who look, and the bytes that each is told."""
    told = [0] * number

    async def look(at: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_FEED)
        with suppress(asyncio.CancelledError):
            while data := await reader.read(65536):
                told[at] += len(data)
        writer.close()

    tasks = [asyncio.ensure_future(look(at)) for at in range(number)]
    await asyncio.sleep(0.5)
    try:
        yield told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def streamed(port: int, pids: list[int]) -> float:
    """Microseconds of CPU per chunk."""
    clients = [await Client.connect(port) for _ in range(STREAMS)]
    before = cpu_seconds(pids)
    for number, client in enumerate(clients):
        client.start(asked(number))
    await asyncio.gather(*(client.finished() for client in clients), return_exceptions=True)
    used = cpu_seconds(pids) - before
    for client in clients:
        client.close()
    return used / (STREAMS * CHUNKS) * 1e6


async def measured(port: int, pids: list[int], rounds: int) -> dict[int, list[float]]:
    """CPU per chunk of every round, by the number of those who look."""
    costs: dict[int, list[float]] = {0: [], 1: []}
    await streamed(port, pids)
    for turn in range(2 * rounds):
        number = (0, 1, 1, 0)[turn % 4]
        async with viewers(port, number) as told:
            costs[number].append(await streamed(port, pids))
        print(f"{number} viewers: {costs[number][-1]:.1f} us per chunk, told {sum(told)} bytes", flush=True)
    return costs


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the medians."""
    rounds = int(arguments[0]) if arguments else ROUNDS
    with TemporaryDirectory() as folder, started(["spillway"], Path(folder)) as targets:
        costs = asyncio.run(measured(targets[-1].port, targets[-1].pids, rounds))
    without, looked_at = median(costs[0]), median(costs[1])
    more = (looked_at / without - 1) * 100
    print(f"median: {without:.1f} us without, {looked_at:.1f} us with a viewer: {more:+.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
