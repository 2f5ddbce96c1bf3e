"""Taking Spillway's own status text out of a history that a client sends back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.core.request import Message
from proxy.core.status.base import strip_status

_FIELDS = ("content", "reasoning_content", "reasoning")


def clean_history(messages: Sequence[Message]) -> list[Message]:
    """The same messages without status text; messages that carry none are the same objects."""
    return [_clean(message) if message.get("role") == "assistant" else message for message in messages]


def _clean(message: Message) -> Message:
    changed: Message = {}
    for name in _FIELDS:
        value = message.get(name)
        clean = list(map(_clean_part, value)) if isinstance(value, list) else _clean_text(value)
        if clean != value:
            changed[name] = clean
    return {**message, **changed} if changed else message


def _clean_text(value: Any) -> Any:
    return strip_status(value) if isinstance(value, str) else value


def _clean_part(part: Any) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": strip_status(part["text"])}
