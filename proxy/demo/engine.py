"""From a request body to an answer, with the limits of a real engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.demo import script
from proxy.demo.pieces import pieces, prompt_tokens
from proxy.demo.wire import RequestRefused, check_body, limit, window_exceeded
from proxy.neutral.request import text_of

MODEL = "spillway-demo"
WINDOW = 4096
"""Tokens of prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What is generated: tokens of the prompt, the partial answer it ends in, and the new tokens."""

    prompt: int
    prefill: str
    tokens: Sequence[str]
    finish_reason: Literal["stop", "length"]


def measure(body: Mapping[str, Any]) -> int:
    """Prompt tokens of a chat completion body.

    Raises:
        RequestRefused: malformed.
    """
    check_body(body)
    return prompt_tokens(body["messages"], body.get("tools"))


def generate(body: Mapping[str, Any]) -> Generated:
    """Answer a chat completion body.

    Raises:
        RequestRefused: malformed, or the prompt does not leave room for one token.
    """
    prompt = measure(body)
    if prompt >= WINDOW:
        raise RequestRefused(400, window_exceeded(prompt, WINDOW))
    messages = body["messages"]
    text = script.reply(messages, used=prompt, window=WINDOW)
    tokens = pieces(_stopped(text, body.get("stop")))
    room = min(WINDOW - prompt, limit(body) or WINDOW)
    last = messages[-1] if messages else {}
    return Generated(
        prompt=prompt,
        prefill=text_of(last) if last.get("role") == "assistant" else "",
        tokens=tokens[:room],
        finish_reason="length" if len(tokens) > room else "stop",
    )


def _stopped(text: str, stop: object) -> str:
    """Cut the text before the first stop string in it."""
    wanted = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    found = [text.index(word) for word in wanted if isinstance(word, str) and word and word in text]
    return text[: min(found)] if found else text
