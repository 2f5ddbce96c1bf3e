"""Reading what a server sent: events of a stream, and what they add up to."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson


def chunks(raw: bytes) -> list[dict[str, Any]]:
    """The JSON of all `data:` frames, without `[DONE]`, comments and other fields."""
    assert raw.endswith(b"\n\n"), f"the stream breaks off in {raw[-80:]!r}"
    data = [line.removeprefix(b"data: ") for line in raw.split(b"\n")]
    return [orjson.loads(line) for line in data if line.startswith(b"{")]


def _deltas(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (one["delta"] for event in events for one in event.get("choices", ()))


def text(events: Sequence[dict[str, Any]]) -> str:
    return "".join(delta.get("content") or "" for delta in _deltas(events))


def finishes(events: Sequence[dict[str, Any]]) -> list[str]:
    return [one["finish_reason"] for event in events for one in event.get("choices", ()) if one.get("finish_reason")]


def tool_calls(events: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    calls: dict[int, dict[str, str]] = {}
    for delta in _deltas(events):
        for piece in delta.get("tool_calls") or ():
            call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += piece.get("id") or ""
            call["name"] += piece["function"].get("name") or ""
            call["arguments"] += piece["function"].get("arguments") or ""
    return [calls[index] for index in sorted(calls)]
