"""From a request body to an answer, with the limits of a real engine: llama-server's, as measured on b11549."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.demo import script
from proxy.demo.pieces import pieces, prompt_tokens, text_of

MODEL = "spillway-demo"
WINDOW = 4096
"""Tokens of prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is generated: tokens of the prompt, the partial answer it ends in, and the new tokens."""

    prompt: int
    prefill: str
    tokens: Sequence[str]
    finish_reason: Literal["stop", "length"]


class Refused(Exception):
    """A request that llama-server refuses too; `fields` go into the error object."""

    def __init__(self, status: int, kind: str, message: str, **fields: int) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": status, "message": message, "type": kind, **fields}}


def measure(body: Mapping[str, Any]) -> int:
    """Prompt tokens of a chat completion body.

    Raises:
        Refused: the messages are not what a chat is made of.
    """
    return prompt_tokens(_messages(body), body.get("tools"))


def generate(body: Mapping[str, Any]) -> Answer:
    """Answer a chat completion body.

    Raises:
        Refused: malformed, or the prompt does not leave room for one token.
    """
    messages = _messages(body)
    _check_ending(body, messages)
    prompt = measure(body)
    if prompt >= WINDOW:
        raise Refused(
            400,
            "exceed_context_size_error",
            f"request ({prompt} tokens) exceeds the available context size ({WINDOW} tokens), try increasing it",
            n_prompt_tokens=prompt,
            n_ctx=WINDOW,
        )
    text = script.reply(messages, used=prompt, window=WINDOW)
    tokens = pieces(_stopped(text, body.get("stop")))
    room = min(WINDOW - prompt, _limit(body))
    last = messages[-1] if messages else {}
    return Answer(
        prompt=prompt,
        prefill=text_of(last) if last.get("role") == "assistant" else "",
        tokens=tokens[:room],
        finish_reason="length" if len(tokens) > room else "stop",
    )


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Refused(400, "invalid_request_error", "'messages' must be an array of objects")
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if any(isinstance(part, dict) and part.get("type") != "text" for part in parts):
            raise Refused(500, "server_error", "the demo model reads text only")
    return messages


def _check_ending(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        problem = "Cannot set both add_generation_prompt and continue_final_message to true."
        raise Refused(400, "invalid_request_error", problem)
    roles = [message.get("role") for message in messages[-2:]]
    if roles == ["assistant", "assistant"]:
        problem = "Cannot have 2 or more assistant messages at the end of the list."
        raise Refused(400, "invalid_request_error", problem)
    if roles[-1:] == ["assistant"] and messages[-1].get("tool_calls"):
        problem = "Cannot continue an assistant message that contains tool calls."
        raise Refused(400, "invalid_request_error", problem)


def _limit(body: Mapping[str, Any]) -> int:
    """The client's bound; none and -1 mean no bound, 0 yields one token as llama-server does."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int) or value < -1:
            raise Refused(400, "invalid_request_error", f"Field '{name}': expected an integer of at least -1")
        return WINDOW if value == -1 else max(1, value)
    return WINDOW


def _stopped(text: str, stop: object) -> str:
    """Cut the text before the first stop string in it."""
    wanted = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    found = [text.index(word) for word in wanted if isinstance(word, str) and word and word in text]
    return text[: min(found)] if found else text
