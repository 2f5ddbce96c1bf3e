"""Recorded agent sessions (benchmarks/data/trajectories), laid one behind the other as an agent's day goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from proxy.core.request import Message

DATA = Path(__file__).parent / "data" / "trajectories"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Session:
    """A long session: tasks behind each other, every one with its steps."""

    name: str
    messages: tuple[Message, ...]

    @property
    def steps(self) -> int:
        """How often the agent asks: at every message that is not the model's."""
        return sum(message["role"] in ("user", "tool") for message in self.messages)


def sessions() -> list[Session]:
    """Three: one with the larger tasks first, one backwards, one in which each task brings its system prompt along."""
    files = sorted(DATA.glob("*.json"))
    tasks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    turned = [*tasks[4:], *tasks[:4]]
    return [
        Session("turned", _joined(turned, systems=False)),
        Session("backwards", _joined(tasks[::-1], systems=False)),
        Session("with systems", _joined(tasks, systems=True)),
    ]


def _joined(tasks: list[list[Message]], *, systems: bool) -> tuple[Message, ...]:
    first, *others = tasks
    kept = [message for task in others for message in task if systems or message["role"] != "system"]
    return (*first, *kept)
