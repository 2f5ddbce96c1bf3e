"""The proxy in front of a backend that goes wrong, and requests for each point at which it does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from proxy.net.transport import HttpTransport
from tests.fakes import FakeModel, summariser, wait_until, walk, words
from tests.faults.backend import FAULTY, Faulty
from tests.faults.leftovers import Leftovers
from tests.faults.table import Fault, Plan, Point
from tests.faults.verdict import Outcome, judged
from tests.proxying import Proxy, running_proxy

_TOLD = re.compile(r"\bCount to (\d+) please\.")
WINDOW = 1024
SILENCE = 1.2
"""Seconds after which a silent backend is given up."""
BOUND = 15.0
"""Seconds in which every request has to end, whatever happens."""
SHORT, LONG = 40, 560
"""Words of an answer: one that is said at once, and one for which the window is too small."""
WHO = "a"
"""The credential of the client."""
FILLER = "the quick brown fox jumps over the lazy dog " * 9


@dataclass(frozen=True, slots=True)
class Stage:
    """One proxy, one backend."""

    proxy: Proxy
    fake: Faulty
    left: Leftovers

    def post(self, point: Point, *, stream: bool) -> httpx.Response:
        """Ask in a way that leads over this point."""
        asked = body(point, stream=stream, last=said_at(point))
        return self.proxy.chat(asked, authorization=f"Bearer {WHO}")

    def ask(self, point: Point, *, stream: bool) -> Outcome:
        """Ask, and judge what comes."""
        return judged(self.post(point, stream=stream), words(1, said_at(point)), stream=stream)

    def known(self) -> tuple[str, int | None]:
        """The kind of the backend and the model's window, as the proxy believes them to be."""
        told = self.proxy.client.get("/spillway/models").json()["backends"][0]
        return told["kind"], (told["models"].get("m", {}).get("window") or {}).get("value")

    def settled(self) -> list[str]:
        """What is left after a while; empty as soon as nothing is."""
        try:
            wait_until(lambda: not self.left.found(), 5.0)
        except AssertionError:
            return self.left.found()
        return []


@contextmanager
def on_stage(silence: float = SILENCE, **settings: Any) -> Iterator[Stage]:
    """A fresh proxy and backend; who is silent for `silence` seconds is given up."""
    transport = HttpTransport(connect_timeout=2.0, read_timeout=silence)
    fake = FAULTY["llamacpp"]([FakeModel("m", WINDOW)], summariser(counting), tokens_per_chunk=2)
    with fake, running_proxy(fake, transport=transport, read_timeout=silence, **settings) as proxy:
        yield Stage(proxy, fake, Leftovers(proxy, transport, fake))


def counting(question: Any) -> Any:
    """Counts as far as the last user message tells, behind what was recalled; a prompt that is only read may tell nothing."""
    told = next((found for text in _asked(question.messages) if (found := _TOLD.findall(text))), ["1"])
    return walk(last=int(told[-1]))(question)


def said_at(point: Point) -> int:
    """Words of the answer that leads over a point."""
    return LONG if point is Point.RESUMING else SHORT


def _asked(messages: Any) -> list[str]:
    return [str(m.get("content")) for m in reversed(messages) if m.get("role") == "user"]


def body(point: Point, *, stream: bool, last: int) -> dict[str, Any]:
    """A request that is compacted, or whose answer has to be, or neither."""
    history = [{"role": "user", "content": f"Count to {last} please."}]
    if point is Point.COMPACTING:
        said = [
            message
            for number in range(9)
            for message in (
                {"role": "user", "content": f"Tell me tale {number}."},
                {"role": "assistant", "content": f"Tale {number}: {FILLER}"},
            )
        ]
        history = [*said, *history]
    return {"model": "m", "stream": stream, "messages": history, "max_tokens": 20_000}


def planned(point: Point, fault: Fault, times: float = float("inf")) -> dict[str, Plan]:
    return {"" if point is Point.PROBING else WHO: Plan(point, fault, times)}
