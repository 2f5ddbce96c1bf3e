"""ctxkeeper in front of the same scripted backend, for the comparison of memories."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.process import free_port, running
from proxy.core.request import Message, text_of
from tests.fakes import FakeBackend, Question, Reply, ToolCall

PLACE = Path(__file__).parent / ".venv-ctxkeeper"
"""A virtual environment of its own, which `make bench` sets up."""
COMMAND = PLACE / "bin" / "ctxkeeper"
_MOVED_OUT = "=== TURNS BEING MOVED OUT ==="
_WORD = re.compile(r"[A-Za-z]{4,}|[\u4e00-\u9fff]{2}")
_MOST_WORDS = 2


@dataclass(frozen=True, slots=True)
class Keeper:
    """A running ctxkeeper."""

    url: str

    def chat(self, body: dict[str, Any]) -> httpx.Response:
        """Post a chat request."""
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)


@contextmanager
def keeper(fake: FakeBackend, window: int) -> Iterator[Keeper]:
    """Run it for a window of so many tokens: the room that it keeps for replies and notes, made for 32k, is scaled down."""
    port, part = free_port(), window // 8
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(COMMAND), "--upstream", fake.url, "--port", str(port), "--state-dir", folder),
            *("--budget", str(window), "--reply-reserve", str(part), "--headroom", str(part // 2)),
            *("--notes-cap", str(part), "--notes-max-tokens", str(2 * part)),
            *("--notes-thinking", "unset", "--repeat-limit", "0"),
        ]
        with running(command, Path(folder) / "log", foreign=True) as process:
            process.wait_until_listening(port)
            yield Keeper(f"http://127.0.0.1:{port}")


def asks_notes(messages: list[Message]) -> bool:
    """Whether a request is for notes."""
    return bool(messages) and _MOVED_OUT in text_of(messages[-1])


def notes(words: str) -> str:
    """Words as notes in the form that is asked for."""
    return f"RULES\n(none)\nSTATE\n{words}\nOPEN\n"


def looks_up(question: Question) -> Reply | None:
    """What a model says that searches for the words of what it is asked; None: it can't, or has done it."""
    named = [tool["function"]["name"] for tool in question.tools]
    if "recall" not in named or question.messages[-1].get("role") == "tool":
        return None
    # Its search shows the newest matches: who names the longest words finds most.
    words = sorted(dict.fromkeys(_WORD.findall(question.last_user)), key=len, reverse=True)[:_MOST_WORDS]
    return Reply(tool_calls=[ToolCall("recall", f'{{"pattern": "{"|".join(words)}"}}', "look")]) if words else None
