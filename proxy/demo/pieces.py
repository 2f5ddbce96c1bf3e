"""The demo model's tokens: a fixed cut of text into short pieces, the same on every run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

_PIECE = re.compile(r" ?\w{1,6}| ?[^\w\s]|\s")
_PER_MESSAGE = 4
"""Tokens of the markup around a message in a chat template."""


def pieces(text: str) -> list[str]:
    """Cut a text into tokens; joined they are the text again."""
    return _PIECE.findall(text)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n\n".join(part for part in parts if isinstance(part, str))


def prompt_tokens(messages: Iterable[Mapping[str, Any]], tools: object = None) -> int:
    """Tokens of a prompt made of these messages and tool definitions."""
    total = len(pieces(orjson.dumps(tools).decode())) if tools else 0
    for message in messages:
        total += _PER_MESSAGE + len(pieces(text_of(message)))
        if calls := message.get("tool_calls"):
            total += len(pieces(orjson.dumps(calls).decode()))
    return total + _PER_MESSAGE
