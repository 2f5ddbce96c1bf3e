"""The demo model's tokens: a fixed cut of text into short pieces, the same on every run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from proxy.neutral.request import text_of

_PIECE = re.compile(r" ?\w{1,6}| ?[^\w\s]|\s")
_PER_MESSAGE = 4
"""Tokens of the markup around a message in a chat template."""


def pieces(text: str) -> list[str]:
    """Cut a text into tokens; joined they are the text again."""
    return _PIECE.findall(text)


def prompt_tokens(messages: Iterable[Mapping[str, Any]], tools: object = None) -> int:
    """Tokens of a prompt made of these messages and tool definitions."""
    total = len(pieces(orjson.dumps(tools).decode())) if tools else 0
    for message in messages:
        total += _PER_MESSAGE + len(pieces(text_of(message)))
        if calls := message.get("tool_calls"):
            total += len(pieces(orjson.dumps(calls).decode()))
    return total + _PER_MESSAGE
