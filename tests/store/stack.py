"""A conversation through the whole proxy while something is wrong with its store."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.fakes.waiting import wait_until
from tests.proxying import UNREDUCED

BOUND = 10.0
"""Seconds that no request may take: a busy machine is slow, a store that holds requests up costs more."""
HEALED = 45.0
"""Seconds within which a store works again once nothing is wrong with it: it is tried every few seconds."""
MODEL = "m"


def backend(**options: Any) -> LlamaCppFake:
    return LlamaCppFake([FakeModel(MODEL, 2048)], summariser(qa()), **options)


def history(name: str, turns: int = 6) -> list[dict[str, Any]]:
    """More than the window takes without being shortened."""
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{name} {number} " + "word " * 170})
        messages.append({"role": "assistant", "content": f"Noted {number}. " + "fine " * 120})
    return [*messages, {"role": "user", "content": f"Remember: the code of {name} is c1."}]


@dataclass
class Conversation:
    """One that is over full: each turn is answered, and `actions` tells what was done for it."""

    url: str
    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    bound: float = BOUND

    def __post_init__(self) -> None:
        self.messages = self.messages or history(self.name)

    def turn(self) -> str:
        """Ask once more; returns what was done, as the header tells it."""
        started = time.monotonic()
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 20}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert time.monotonic() - started < self.bound
        text = answer.json()["choices"][0]["message"]["content"]
        assert text
        self.messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": f"And then, {len(self.messages)}?"},
        ]
        self.actions.append(answer.headers["x-spillway-action"])
        return self.actions[-1]


def ready(url: str, *, shared: bool = False) -> str:
    """What `/readyz` says of the store, which is a reason for being not ready unless it is shared."""
    answer = httpx.get(f"{url}/readyz", timeout=20, trust_env=False)
    told: str = answer.json()["store"]
    expected = (200, "ready") if shared or told == "ok" else (503, "the store fails")
    assert (answer.status_code, answer.json()["status"]) == expected
    return told


def healed(url: str, *, shared: bool = False) -> None:
    wait_until(lambda: ready(url, shared=shared) == "ok", timeout=HEALED)


def survives(url: str, name: str) -> Conversation:
    """A conversation that begins while the store is in trouble: it is shortened once, and stays so."""
    conversation = Conversation(url, name)
    actions = [conversation.turn() for _ in range(3)]
    assert actions[0] not in UNREDUCED
    assert actions[1:] == ["continued", "continued"], "shortened again, because nobody remembered"
    return conversation
