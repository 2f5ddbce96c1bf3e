"""Many clients at once, all kinds of backends, everything going wrong by chance: for as long as is wanted.

What is drawn hangs on the seed alone, so that a seed brings the same requests and faults back; their timing it does not.
What hangs on time is a finding only where the machine let this process run: `_starved` measures that beside the requests.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from time import monotonic, process_time
from typing import Any

import httpx
from typing_extensions import override

from proxy.net.transport import HttpTransport
from tests.fakes import FakeModel, await_until, summariser, words
from tests.faults.backend import FAULTY, Faulty
from tests.faults.leftovers import Leftovers
from tests.faults.stage import WINDOW, body, counting, said_at
from tests.faults.table import Fault, Plan, Point
from tests.faults.verdict import NotClear, judged
from tests.proxying import running_proxy

BOUND = 45.0
"""Seconds in which every request has to end."""
SILENCE = 1.5
"""Seconds after which a silent backend is given up."""
TIMES = {"heartbeat": 0.5, "grace": 0.5, "profile_ttl": 2.0}
"""Of the proxy, in seconds: what it was told last is believed for less than `AFTERMATH`."""
BETWEEN_LULLS = 60.0
FAIR, SPELL = (1.0, 6.0), (0.1, 0.6)
"""Seconds between two spells of bad weather, and seconds that one lasts."""
AFTERMATH = 3.0
"""Seconds in which a proxy may still believe what it was told last."""
BEAT = 0.05
"""Seconds between two looks at the backends and the clocks."""
LOST = 0.2
"""Share of `SILENCE` seconds in which this process neither slept nor ran, from which on the machine is starved."""
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
    path: str | None
    """Another path that is asked for, instead of a chat."""


def drawn(seed: int, client: int, number: int, kinds: Sequence[str]) -> Turn:
    """What a client does in a turn."""
    chance = Random(f"{seed}/{client}/{number}")
    return Turn(
        client, number, chance.choice(kinds), chance.choice(POINTS),
        chance.choice(list(Fault)) if chance.random() < 0.3 else None, stream=chance.random() < 0.6,
        leaves=chance.uniform(0.0, 0.6) if chance.random() < 0.15 else None, slow=chance.random() < 0.1,
        path=chance.choice(OTHER_PATHS) if chance.random() < 0.05 else None,
    )  # fmt: skip


class Tracebacks(logging.Handler):
    """What the log tells of a mistake in the proxy itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.lines.append(f"log: {self.format(record)}")


@dataclass
class Chaos:
    """One run, and what came of it."""

    seconds: float
    seed: int
    clients: int
    kinds: Sequence[str]
    say: Callable[[str], None]
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By point, fault and outcome."""
    findings: list[str] = field(default_factory=list)
    _bad: dict[str, float] = field(default_factory=dict)
    """When a backend was last seen in trouble."""
    _lost: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds in which this process neither slept nor ran, by the `SILENCE` seconds in which they fell."""
    _busy: int = 0

    async def run(self) -> None:
        """Go on until the time is up."""
        log, transport = Tracebacks(), HttpTransport(connect_timeout=2.0, read_timeout=SILENCE)
        with ExitStack() as stack:
            self._fakes = {kind: stack.enter_context(_backend(kind)) for kind in self.kinds}
            models = {"m-generic": {"window": WINDOW}}
            settings: dict[str, Any] = {"models": models, "read_timeout": SILENCE, **TIMES}
            proxy = stack.enter_context(running_proxy(*self._fakes.values(), transport=transport, **settings))
            self._url, self._left = proxy.url, Leftovers(proxy, transport, *self._fakes.values())
            logging.getLogger().addHandler(log)
            stack.callback(logging.getLogger().removeHandler, log)
            await self._play()
            for fake in self._fakes.values():
                self.findings += [f"{fake.kind} crashed: {crash!r}" for crash in fake.crashes]
                fake.crashes.clear()
        self.findings += log.lines

    async def _play(self) -> None:
        self._going = asyncio.Event()
        until = monotonic() + self.seconds
        tasks = [asyncio.create_task(self._client(n)) for n in range(self.clients)]  # noqa: TID251 - no part of the proxy
        tasks.append(asyncio.create_task(self._weather()))  # noqa: TID251 - as above
        try:
            while monotonic() < until:
                self._going.set()
                await asyncio.sleep(min(BETWEEN_LULLS, max(0.0, until - monotonic())))
                await self._lull()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _lull(self) -> None:
        """Wait until all is quiet, and look at what the proxy still holds."""
        since = monotonic() - BETWEEN_LULLS
        self._going.clear()
        with suppress(AssertionError):
            await await_until(lambda: not self._busy, within=BOUND + 15)
        found = []
        for fake in self._fakes.values():
            fake.heal()
            found += [f"{fake.kind}: two answers at once for {who}" for who in fake.doubled]
            fake.doubled.clear()
        try:
            await await_until(lambda: not self._left.found())
        except AssertionError:
            found += [f"left over: {each}" for each in self._left.found()]
        if found and not await self._starved(since):
            self.findings += found
        self.say(f"{self.outcomes.total()} requests, {len(self.findings)} findings")

    # -- the backends

    async def _weather(self) -> None:
        """Change what holds for all clients of a backend, and heal who was in trouble for long enough, whoever brought it there."""
        chance, heals, worsens = Random(self.seed), dict[str, float](), 0.0
        while True:
            slept, ran = monotonic(), process_time()
            await asyncio.sleep(BEAT)
            now = monotonic()
            self._lost[int(now / SILENCE)] += now - slept - max(BEAT, process_time() - ran)
            for fake in self._fakes.values():
                if fake.in_trouble:
                    self._bad[fake.kind] = now
                    if now > heals.setdefault(fake.kind, now + chance.uniform(*SPELL)):
                        del heals[fake.kind]
                        fake.recover()
            if self._going.is_set() and now > worsens:
                worsens = now + chance.uniform(*FAIR)
                self._worsen(self._fakes[chance.choice(self.kinds)], chance.choice(list(Fault)), chance.randint(1, 8))

    def _worsen(self, fake: Faulty, fault: Fault, times: int) -> None:
        self._bad[fake.kind] = monotonic()
        if fault is Fault.REFUSED:
            fake.go_down()
        else:
            fake.plans[""] = Plan(Point.PROBING, fault, times)

    def _was_bad(self, fake: Faulty, since: float) -> bool:
        """Whether a backend was in trouble after that time, or shortly before."""
        return fake.in_trouble or self._bad.get(fake.kind, 0.0) > since - AFTERMATH

    async def _starved(self, since: float) -> bool:
        """Whether the machine kept this process waiting after that time, so that no delay says anything of the proxy."""
        await asyncio.sleep(2 * BEAT)  # until what was lost last is known
        spans = range(int(since / SILENCE), int(monotonic() / SILENCE) + 1)
        return max(self._lost[span] for span in spans) > LOST * SILENCE

    # -- one client

    async def _client(self, client: int) -> None:
        limits = httpx.Limits(max_keepalive_connections=1)
        async with httpx.AsyncClient(base_url=self._url, timeout=BOUND, trust_env=False, limits=limits) as http:
            number = 0
            while True:
                await self._going.wait()
                number += 1
                self._busy += 1
                try:
                    await self._turn(http, drawn(self.seed, client, number, self.kinds))
                finally:
                    self._busy -= 1

    async def _turn(self, http: httpx.AsyncClient, turn: Turn) -> None:
        fake, who, begun = self._fakes[turn.kind], f"c{turn.client}", monotonic()
        fake.plans.pop(who, None)
        if turn.fault is not None:
            fake.plans[who] = Plan(turn.point, turn.fault, Random(turn.number).choice([1, float("inf")]))
        late = False
        try:
            kind, error = await (self._other(http, turn.path) if turn.path else self._chat(http, turn, who))
        except (NotClear, httpx.HTTPError, TimeoutError) as problem:
            kind, error = "finding", f"{type(problem).__name__}: {problem}"
            late = isinstance(problem, httpx.TimeoutException | TimeoutError)
        if turn.fault is None and kind == "error" and not self._was_bad(fake, begun):
            kind, error, late = "finding", f"an error though nothing went wrong: {error}", True
        if late and await self._starved(begun - AFTERMATH):
            kind = "starved"
        elif kind == "finding":
            self.findings.append(f"{turn}: {error}")
            self.say(f"FOUND {turn}: {error}")
        self.outcomes[turn.point.value, turn.fault.value if turn.fault is not None else "-", kind] += 1

    async def _other(self, http: httpx.AsyncClient, path: str) -> tuple[str, str]:
        response = await http.get(path)
        if response.status_code not in {200, 503}:
            raise NotClear(f"{path}: {response.status_code}")
        return "other", ""

    async def _chat(self, http: httpx.AsyncClient, turn: Turn, who: str) -> tuple[str, str]:
        """Ask and judge; what it came to, and an error's message."""
        headers = {"authorization": f"Bearer {who}", "x-spillway-status": "comment"}
        sent = http.build_request("POST", "/v1/chat/completions", json=_asking(turn), headers=headers)
        if turn.leaves is not None:
            with suppress(TimeoutError, httpx.TimeoutException):
                async with asyncio.timeout(turn.leaves):
                    await (await http.send(sent)).aread()
            return "left", ""
        async with asyncio.timeout(BOUND):
            response = await http.send(sent, stream=True)
            try:
                parts = []
                async for part in response.aiter_raw():
                    parts.append(part)
                    await asyncio.sleep(0.02 if turn.slow else 0)
            finally:
                await response.aclose()
        whole = httpx.Response(response.status_code, headers=response.headers, content=b"".join(parts))
        outcome = judged(whole, words(1, said_at(turn.point)), stream=turn.stream)
        return outcome.kind, outcome.error


def _asking(turn: Turn) -> dict[str, Any]:
    """A body that no other turn has, so that what was compacted before is of no use."""
    asked = body(turn.point, stream=turn.stream, last=said_at(turn.point))
    greeting = {"role": "user", "content": f"Good morning, {turn.client} and {turn.number}."}
    messages = [greeting, {"role": "assistant", "content": "Good morning."}, *asked["messages"]]
    return {**asked, "model": f"m-{turn.kind}", "messages": messages}


def _backend(kind: str) -> Faulty:
    return FAULTY[kind]([FakeModel(f"m-{kind}", WINDOW)], summariser(counting), tokens_per_chunk=4, keep=20)
