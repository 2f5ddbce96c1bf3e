"""Why the backend's cache of a prompt can't have helped: `diagnostics`, by comparing with the request of an earlier message.

Fields: PyPI `anthropic` 2.12.0, `types/beta/beta_diagnostics.py` and those it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.dialects.bodies import text_in
from proxy.neutral.managing import fingerprint, in_common, short_digest
from proxy.wire.jsontext import dumps

FOUND = "cache_miss_reason"
"""Where the diagnosis is kept beside the fields of a request, for whoever writes its answer."""
_FRONT = ("model", "system", "tools")
"""What a prompt begins with, in the order in which it is looked at."""
_OTHERS = ("thinking", "tool_choice", "output_config")
"""What else changes how a prompt is written."""
_LEVELS = 6
"""Down to the blocks of a result, in which the lowest marks are."""
_BYTES = 4
"""To a token, about."""


def is_diagnosed(asked: Mapping[str, Any]) -> bool:
    """Whether the client wants to be told, now or later."""
    return isinstance(asked.get("diagnostics"), dict)


def compared_with(asked: Mapping[str, Any]) -> str:
    """The id of the message with whose request this one is to be compared; empty: none."""
    return text_in(asked["diagnostics"], "previous_message_id") if is_diagnosed(asked) else ""


def print_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a request is known by later: digests of what its prompt is made of. Marks for caches are no part of that."""
    digests = {name: digest_of(asked.get(name)) for name in (*_FRONT, *_OTHERS)}
    return {"digests": digests, "messages": list(map(fingerprint, _messages(asked)))}


def diagnosis(before: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Why the prompt does not go on from the one before, as the client is told; None if it does."""
    if before is None or "digests" not in before:
        return {"type": "previous_message_not_found"}
    now, links = print_of(asked), before["messages"]
    differs = [name for name in (*_FRONT, *_OTHERS) if before["digests"].get(name) != now["digests"][name]]
    common = in_common(links, now["messages"])
    front = next((name for name in _FRONT if name in differs), None)
    if front is None and common == len(links):
        return {"type": "unavailable"} if differs else None
    lost = _messages(asked)[0 if front else common : len(links)]
    again = [asked.get(name) for name in _FRONT[1:]] if front else []
    missed = sum(len(dumps(each)) for each in (*again, *lost)) // _BYTES
    return {"type": f"{front or 'messages'}_changed", "cache_missed_input_tokens": missed}


def _messages(asked: Mapping[str, Any]) -> Sequence[Any]:
    """The messages of a request without marks; what stands before a compaction may be anything."""
    return [_unmarked(message) for message in asked["messages"] if isinstance(message, dict)]


def _unmarked(value: Any, levels: int = _LEVELS) -> Any:
    """A value without the marks in it, which are moved from turn to turn."""
    if isinstance(value, list) and levels:
        return [_unmarked(each, levels - 1) for each in value]
    if isinstance(value, dict) and levels:
        return {name: _unmarked(each, levels - 1) for name, each in value.items() if name != "cache_control"}
    return value


def digest_of(value: Any) -> str:
    """What a field of a request is known by; marks for caches are no part of that."""
    return short_digest(_unmarked(value))
