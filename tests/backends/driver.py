"""Runs a backend's flow against recorded replies, keyed by path, and keeps what was asked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from proxy.backends.base import Flow, Probe, Reply

T = TypeVar("T")

NOT_FOUND = Reply(404, {"error": {"message": "not found"}})


def payloads(backend: str) -> dict[str, Any]:
    path = Path(__file__).parent / "payloads" / f"{backend}.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def play(flow: Flow[T], replies: Mapping[str, Any], *, otherwise: Reply = NOT_FOUND) -> tuple[T, list[Probe]]:
    """The result of `flow` and the probes it sent; a reply is JSON (status 200) or a `Reply`."""
    asked: list[Probe] = []
    reply: Reply | None = None
    while True:
        try:
            probe = next(flow) if reply is None else flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result, asked
        asked.append(probe)
        assert len(asked) < 20, asked
        found = replies.get(probe.path, otherwise)
        reply = found if isinstance(found, Reply) else Reply(200, found)


def paths(probes: list[Probe]) -> list[str]:
    return [probe.path for probe in probes]
