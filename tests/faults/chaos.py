"""Many clients at once, all kinds of backends, everything going wrong by chance: for as long as is wanted.

What is drawn hangs on the seed alone, so that a seed brings the same requests and faults back; their timing it does not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import httpx

from tests.fakes import FakeModel, await_until, summariser, words
from tests.faults.backend import FAULTY, Faulty
from tests.faults.process import Served
from tests.faults.stage import WINDOW, body, counting, said_at
from tests.faults.table import Fault, Plan, Point
from tests.faults.verdict import NotClear, judged
from tests.faults.weather import Weather

BOUND = 45.0
"""Seconds in which every request has to end."""
LULL = 4.0
"""Seconds after which connections that nobody uses are closed, on either side."""
BETWEEN_LULLS = 60.0
ENOUGH = 6
"""Lulls that it takes to see memory grow: a fresh process warms up."""
SETTINGS = {"SPILLWAY_READ_TIMEOUT": "1.5", "SPILLWAY_HEARTBEAT": "0.5", "SPILLWAY_STORE_BYTES": str(4 * 2**20)}
POINTS = [point for point in Point if point is not Point.PROBING]
OTHER_PATHS = ("/v1/models", "/metrics", "/healthz", "/readyz", "/spillway/models")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of one client, as it was drawn."""

    client: int
    number: int
    kind: str
    point: Point
    fault: Fault | None
    stream: bool
    leaves: float | None
    """After how many seconds the client goes; None: it reads to the end."""
    slow: bool
    other: str | None
    """Another path that is asked for, instead of a chat."""


def drawn(seed: int, client: int, number: int, kinds: Sequence[str]) -> Turn:
    """What a client does in a turn."""
    chance = Random(f"{seed}/{client}/{number}")
    return Turn(
        client,
        number,
        chance.choice(kinds),
        chance.choice(POINTS),
        chance.choice(list(Fault)) if chance.random() < 0.3 else None,
        stream=chance.random() < 0.6,
        leaves=chance.uniform(0.0, 0.6) if chance.random() < 0.15 else None,
        slow=chance.random() < 0.1,
        other=chance.choice(OTHER_PATHS) if chance.random() < 0.05 else None,
    )


@dataclass(slots=True)
class Tally:
    """What came of it all."""

    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By point, fault and outcome."""
    findings: list[str] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    """What the proxy held in each lull."""

    @property
    def requests(self) -> int:
        """How many there were."""
        return self.outcomes.total()


class Chaos:
    """One run."""

    def __init__(
        self, *, seconds: float, seed: int, clients: int, kinds: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._seconds = seconds
        self._seed, self._clients, self._kinds, self._say = seed, clients, kinds, say
        self._lull_after = min(BETWEEN_LULLS, seconds / 3)
        self._going = asyncio.Event()
        self._busy = 0
        self.tally = Tally()

    async def run(self) -> Tally:
        """Go on until the time is up."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="spillway-chaos-")))
            self._fakes = {kind: stack.enter_context(_backend(kind)) for kind in self._kinds}
            self._proxy = stack.enter_context(Served(list(self._fakes.values()), folder, SETTINGS))
            self._weather = Weather(list(self._fakes.values()), Random(self._seed))
            await self._play()
            self.tally.findings += [f"log: {line}" for line in self._proxy.troubles()]
            for fake in self._fakes.values():
                self.tally.findings += [f"{fake.kind}: two answers at once for {who}" for who in fake.doubled]
                self.tally.findings += [f"{fake.kind} crashed: {crash!r}" for crash in fake.crashes]
                fake.crashes.clear()
        self.tally.findings += not_flat(self.tally.held, kept=self._clients + len(self._kinds))
        return self.tally

    async def _play(self) -> None:
        await self._lull()
        background = asyncio.create_task(self._weather.run(self._going))  # noqa: TID251 - no part of the proxy
        until = monotonic() + self._seconds
        clients = [asyncio.create_task(self._client(n)) for n in range(self._clients)]  # noqa: TID251 - as above
        try:
            while monotonic() < until:
                await asyncio.sleep(min(self._lull_after, max(0.0, until - monotonic())))
                await self._lull()
                if not self._proxy.alive:
                    self.tally.findings.append("the proxy has ended")
                    break
        finally:
            for task in (background, *clients):
                task.cancel()
            await asyncio.gather(background, *clients, return_exceptions=True)

    async def _lull(self) -> None:
        """Wait until all is quiet, and look at what the proxy still holds."""
        self._going.clear()
        with suppress(AssertionError):
            await await_until(lambda: not self._busy, within=BOUND + 15)
        for fake in self._fakes.values():
            fake.heal()
        await asyncio.sleep(LULL)
        held = await asyncio.to_thread(self._proxy.held)
        answering = sum(fake.active for fake in self._fakes.values())
        self.tally.held.append({**held, "answering": answering, "requests": self.tally.requests})
        self._say(f"{self.tally.requests} requests, {len(self.tally.findings)} findings, held: {held}")
        self._going.set()

    # -- one client

    async def _client(self, client: int) -> None:
        limits = httpx.Limits(max_keepalive_connections=1)
        async with httpx.AsyncClient(base_url=self._proxy.url, timeout=BOUND, trust_env=False, limits=limits) as http:
            number = 0
            while True:
                await self._going.wait()
                number += 1
                self._busy += 1
                try:
                    await self._turn(http, drawn(self._seed, client, number, self._kinds))
                finally:
                    self._busy -= 1

    async def _turn(self, http: httpx.AsyncClient, turn: Turn) -> None:
        fake, who, begun = self._fakes[turn.kind], f"c{turn.client}", monotonic()
        if turn.fault is not None:
            fake.plans[who] = Plan(turn.point, turn.fault, Random(turn.number).choice([1, float("inf")]))
        else:
            fake.plans.pop(who, None)
        try:
            kind, said = await self._asked(http, turn, who)
        except (NotClear, httpx.HTTPError, TimeoutError) as error:
            kind, said = "finding", ""
            self._found(turn, f"{type(error).__name__}: {error}")
        if turn.fault is None and kind == "error" and not self._weather.was_bad(fake, begun):
            self._found(turn, f"an error though nothing went wrong: {said}")
        fault = turn.fault.value if turn.fault is not None else "-"
        self.tally.outcomes[turn.point.value, fault, kind] += 1

    def _found(self, turn: Turn, what: str) -> None:
        self.tally.findings.append(f"{turn}: {what}")
        self._say(f"FOUND {turn}: {what}")

    async def _asked(self, http: httpx.AsyncClient, turn: Turn, who: str) -> tuple[str, str]:
        """Ask and judge; what it came to, and an error's message."""
        if turn.other is not None:
            response = await http.get(turn.other)
            if response.status_code not in {200, 503}:
                raise NotClear(f"{turn.other}: {response.status_code}")
            return "other", ""
        sent = http.build_request(
            "POST",
            "/v1/chat/completions",
            json=_asking(turn),
            headers={"authorization": f"Bearer {who}", "x-spillway-status": "comment"},
        )
        if turn.leaves is not None:
            with suppress(TimeoutError, httpx.TimeoutException):
                async with asyncio.timeout(turn.leaves):
                    await (await http.send(sent)).aread()
            return "left", ""
        async with asyncio.timeout(BOUND):
            response = await http.send(sent, stream=True)
            try:
                parts = []
                async for part in response.aiter_bytes():
                    parts.append(part)
                    await asyncio.sleep(0.02 if turn.slow else 0)
            finally:
                await response.aclose()
        whole = httpx.Response(response.status_code, headers=_plain(response.headers), content=b"".join(parts))
        outcome = judged(whole, words(1, said_at(turn.point)), stream=turn.stream)
        return outcome.kind, outcome.error


def _asking(turn: Turn) -> dict[str, Any]:
    """A body that no other turn has, so that what was compacted before is of no use."""
    asked = body(turn.point, stream=turn.stream, last=said_at(turn.point))
    greeting = {"role": "user", "content": f"Good morning, {turn.client} and {turn.number}."}
    return {**asked, "model": f"m-{turn.kind}", "messages": [greeting, *_answered(asked["messages"])]}


def _answered(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": "Good morning."}, *messages]


def _plain(headers: httpx.Headers) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() != "content-encoding"]


def _backend(kind: str) -> Faulty:
    return FAULTY[kind]([FakeModel(f"m-{kind}", WINDOW)], summariser(counting), tokens_per_chunk=4, keep=20)


def not_flat(held: Sequence[dict[str, int]], *, kept: int) -> list[str]:
    """What grew from lull to lull, but for `kept` connections; the first ones are left to warming up.

    What comes and goes, as tasks do, has not grown: it is the least of the second half that tells.
    """
    first, later = held[min(1, len(held) - 1)], held[len(held) // 2 :]
    found = [
        f"{name} grew from {first[name]} to {last}: {[each[name] for each in held]}"
        for name, slack in (("tasks", 0), ("locks", 0), ("threads", 0), ("files", kept), ("answering", 0))
        if (last := min(each[name] for each in later)) > first[name] + slack
    ]
    if len(held) < ENOUGH:
        return found
    rest = held[len(held) // 3 :]
    before, after = rest[0]["memory"], min(each["memory"] for each in rest[len(rest) // 2 :])
    if after > before * 1.1 + 8_192:
        found.append(f"memory grew from {before} to {after} KiB: {[each['memory'] for each in held]}")
    return found
