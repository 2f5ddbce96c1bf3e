"""The load of streams in every dialect: what a chunk costs in each, next to one of chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from benchmarks.canned import MODEL
from benchmarks.checking import said
from benchmarks.client import Answer, Client, posted
from benchmarks.process import cpu_seconds

CHAT = "chat"
_Event = dict[str, Any]


def _turns(order: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": order}]


ASKS: dict[str, tuple[str, Callable[[str], dict[str, Any]], Callable[[_Event], str]]] = {
    CHAT: (
        "/v1/chat/completions",
        lambda order: {"messages": _turns(order)},
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event["choices"]),
    ),
    "messages": (
        "/v1/messages",
        lambda order: {"messages": _turns(order), "max_tokens": 100_000},
        lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
    ),
    "responses": (
        "/v1/responses",
        lambda order: {"input": _turns(order), "store": False},
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "ollama": ("/api/chat", lambda order: {"messages": _turns(order)}, lambda event: event["message"]["content"]),
}
"""Where each is asked, how, and what an event of it says."""


async def dialects(port: int, pids: list[int], *, streams: int, chunks: int) -> dict[str, Any]:
    """Parallel streams in one dialect after the other: CPU per chunk, and how many times that of chat completions."""
    clients = [await Client.connect(port) for _ in range(streams)]
    used: dict[str, float] = {}
    bad = 0
    for name, (path, body, text) in ASKS.items():
        asks = [posted(path, {"model": MODEL, "stream": True, **body(f"bench:{count}:0")}) for count in (3, chunks)]
        await asyncio.gather(*(client.send(asks[0]) for client in clients))
        before = cpu_seconds(pids)
        answers = await asyncio.gather(*(client.send(asks[1]) for client in clients))
        used[name] = (cpu_seconds(pids) - before) / (streams * chunks) * 1e6
        bad += sum(_text_of(answer, text) != "".join(said(chunks)) for answer in answers)
    times = {f"{name}_times": cpu / max(used[CHAT], 1e-9) for name, cpu in used.items()}
    return {"cpu_us": used[CHAT], **times, "bad": bad}


def _text_of(answer: Answer, text: Callable[[_Event], str]) -> str:
    """What an answer says, whether its events are frames or lines."""
    lines = (line.removeprefix(b"data: ") for line in b"".join(answer.body).split(b"\n"))
    return "".join(text(json.loads(line)) for line in lines if line.startswith(b"{"))
