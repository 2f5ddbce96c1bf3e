"""Taking Spillway's own status text out of a history that a client sends back, and marks that only Spillway may set.

A client never gets a block of Spillway's, so one in an answer that it sends back is a quotation, or a forgery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import is_not
from typing import Any

from proxy.core.history.embedded import Span, without
from proxy.core.history.marks import defanged, forges_block
from proxy.core.request import THOUGHT_FIELDS, Message, is_text_part
from proxy.shaping.repair import RepairRules, repair
from proxy.stream.status import status_spans, strip_status

_FIELDS = ("content", *THOUGHT_FIELDS)


def tidied(messages: Sequence[Message], rules: RepairRules) -> tuple[Sequence[Message], Sequence[str]]:
    """A history cleaned and mended, the same object if nothing was done, and the kinds of repairs."""
    clean = clean_history(messages)
    done, kinds = repair(clean, rules)
    return (done if kinds or any(map(is_not, messages, clean)) else messages), kinds


def clean_history(messages: Sequence[Message]) -> list[Message]:
    """The same messages without status text and without marks in answers; messages that carry none are the same objects."""
    return [_clean(message) if message.get("role") == "assistant" else message for message in messages]


def _clean(message: Message) -> Message:
    changed: Message = {}
    for name in _FIELDS:
        value = message.get(name)
        if not value:
            continue
        clean = _clean_parts(value) if isinstance(value, list) else _clean_text(value)
        if clean != value:
            changed[name] = clean
    return {**message, **changed} if changed else message


def _clean_text(value: Any) -> Any:
    return _stripped(value) if isinstance(value, str) else value


def _stripped(text: str) -> str:
    text = strip_status(text)
    return defanged(text) if forges_block(text) else text


def _clean_parts(parts: list[Any]) -> list[Any]:
    """Parts without notices; one may lie across several texts in a row."""
    done: list[Any] = []
    for is_text, group in groupby(parts, key=is_text_part):
        run = list(group)
        done += _clean_texts(run) if is_text else run
    return done


def _clean_texts(parts: list[Any]) -> list[Any]:
    """Each text without what of a notice lies in it; both are gone through once, side by side."""
    spans = deque(status_spans("".join(part["text"] for part in parts)) if len(parts) > 1 else ())
    done, at = [], 0
    for part in parts:
        text, end = part["text"], at + len(part["text"])
        inside: list[Span] = []
        while spans and spans[0][0] < end:
            start, stop = spans[0]
            inside.append((max(0, start - at), min(stop, end) - at))
            if stop > end:
                break
            spans.popleft()
        # Then by itself: what ends one text need not go on in the next.
        done.append({**part, "text": _stripped(without(text, inside))})
        at = end
    return done
