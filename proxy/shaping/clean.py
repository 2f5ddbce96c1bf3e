"""Taking Spillway's own status text out of a history that a client sends back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from proxy.neutral.request import Message
from proxy.status.base import status_spans, strip_status

_FIELDS = ("content", "reasoning_content", "reasoning")


def clean_history(messages: Sequence[Message]) -> list[Message]:
    """The same messages without status text; messages that carry none are the same objects."""
    return [_clean(message) if message.get("role") == "assistant" else message for message in messages]


def _clean(message: Message) -> Message:
    changed: Message = {}
    for name in _FIELDS:
        value = message.get(name)
        clean = _clean_parts(value) if isinstance(value, list) else _clean_text(value)
        if clean != value:
            changed[name] = clean
    return {**message, **changed} if changed else message


def _clean_text(value: Any) -> Any:
    return strip_status(value) if isinstance(value, str) else value


def _clean_parts(parts: list[Any]) -> list[Any]:
    """Parts without notices; one may lie across several texts in a row."""
    done: list[Any] = []
    for is_text, group in groupby(parts, key=_is_text):
        run = list(group)
        done += _clean_texts(run) if is_text else run
    return done


def _clean_texts(parts: list[Any]) -> list[Any]:
    spans = status_spans("".join(part["text"] for part in parts)) if len(parts) > 1 else []
    done, at = [], 0
    for part in parts:
        text, end = part["text"], at + len(part["text"])
        for start, stop in reversed(spans):
            text = (
                text[: max(0, start - at)] + text[max(0, stop - at) :] if start < end and stop > at else text
            )
        # Then by itself: what ends one text need not go on in the next.
        done.append({**part, "text": strip_status(text)})
        at = end
    return done


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
