"""Tool calls put together from their deltas."""

from __future__ import annotations

from typing import Any


class CallCollector:
    """Collects the calls of one answer, as a whole message would hold them."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._places: dict[int | None, int] = {}
        self._legacy: dict[str, Any] | None = None

    def add(self, delta: dict[str, Any]) -> None:
        """Take in a delta that has `tool_calls` or `function_call`; what is not in their form is left out."""
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, dict):
                self._add_call(piece)
        if isinstance(legacy := delta.get("function_call"), dict):
            self._legacy = _joined(self._legacy or {"name": "", "arguments": ""}, legacy)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._calls)

    @property
    def finish(self) -> str:
        """The finish reason of an answer that ends in them."""
        return "tool_calls" if self._calls else "function_call"

    def message(self) -> dict[str, Any]:
        """The fields of a message that hold the calls; empty if there are none."""
        if self._calls:
            return {"tool_calls": list(self._calls)}
        return {"function_call": self._legacy} if self._legacy is not None else {}

    def _add_call(self, piece: dict[str, Any]) -> None:
        """Pieces belong to a call by its index; where that is always the same, a new id is a new call (Ollama)."""
        index, made = piece.get("index"), piece.get("id")
        index = index if isinstance(index, int) else None
        at = self._places.get(index)
        if at is None or (made and made != self._calls[at]["id"] and self._calls[at]["id"]):
            at = self._places[index] = len(self._calls)
            empty = {"name": "", "arguments": ""}
            self._calls.append({"id": "", "type": piece.get("type") or "function", "function": empty})
        call = self._calls[at]
        call["id"] = call["id"] or made or ""
        if isinstance(function := piece.get("function"), dict):
            call["function"] = _joined(call["function"], function)


def _joined(function: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    name, arguments = piece.get("name"), piece.get("arguments")
    return {
        "name": function["name"] or (name if isinstance(name, str) else ""),
        "arguments": function["arguments"] + (arguments if isinstance(arguments, str) else ""),
    }
