"""Reading what a server sent: events of a stream, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson


def frames(raw: bytes) -> list[bytes]:
    """The frames of an event stream, without their blank lines; the last must be whole."""
    *whole, rest = raw.split(b"\n\n")
    assert rest == b"", f"the stream breaks off in {rest!r}"
    return whole


def chunks(raw: bytes) -> list[dict[str, Any]]:
    """The JSON of all `data:` frames, without `[DONE]`, comments and other fields."""
    data = [line.removeprefix(b"data: ") for frame in frames(raw) for line in frame.split(b"\n")]
    return [orjson.loads(line) for line in data if line.startswith(b"{")]


def deltas(events: Sequence[dict[str, Any]], choice: int = 0) -> list[dict[str, Any]]:
    """Deltas of one choice."""
    return [one["delta"] for event in events for one in event.get("choices", ()) if one.get("index") == choice]


def text(events: Sequence[dict[str, Any]], choice: int = 0, field: str = "content") -> str:
    """What the deltas of one choice say."""
    return "".join(delta.get(field) or "" for delta in deltas(events, choice))


def finishes(events: Sequence[dict[str, Any]]) -> list[str]:
    """All finish reasons, in order."""
    return [one["finish_reason"] for event in events for one in event.get("choices", ()) if one.get("finish_reason")]


def usage(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The last usage."""
    return next((event["usage"] for event in reversed(events) if event.get("usage")), None)


def tool_calls(events: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Tool calls put together from their deltas."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas(events):
        for piece in delta.get("tool_calls") or ():
            call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += piece.get("id") or ""
            call["name"] += piece["function"].get("name") or ""
            call["arguments"] += piece["function"].get("arguments") or ""
    return [calls[index] for index in sorted(calls)]
