"""How Ollama makes a prompt fit without a word: first whole messages, then tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fakes.model import Message
from tests.fakes.tokens import Template

NUM_KEEP = 5
"""Tokens kept from the start: the default of four, and BOS."""


def drop_oldest(messages: Sequence[Message], fits: Callable[[list[Message]], bool]) -> list[Message]:
    """The message stage: drop the oldest until the rest fits.

    System messages and the last message always stay; tool results may lose their call.
    """
    kept = list(messages)
    for start in range(len(messages)):
        systems = [message for message in messages[:start] if message.get("role") == "system"]
        kept = [*systems, *messages[start:]]
        if fits(kept):
            break
    return kept


def token_limit(num_ctx: int) -> int:
    """Tokens that the token stage leaves: about half of the window."""
    return num_ctx // 2 + 2


def cut_tokens(
    messages: Sequence[Message], parts: Sequence[str], template: Template, limit: int
) -> tuple[list[Message], list[str]]:
    """The token stage: keep the first few tokens and the last ones, `limit` in all.

    Args:
        messages: what is in the prompt, without the partial answer.
        parts: the rendered prompt: head, one part per message, tail.
        template: of the model.
        limit: tokens to keep.

    Returns:
        What is left of the messages, and of the parts.
    """
    pieces = [template.tokenizer.pieces(part) for part in parts]
    total = sum(map(len, pieces))
    resume = total - (limit - NUM_KEEP)
    kept_parts: list[str] = []
    at = 0
    for part in pieces:
        kept_parts.append(
            "".join(piece for index, piece in enumerate(part, start=at) if index < NUM_KEEP or index >= resume)
        )
        at += len(part)
    rest = [_remains(message, part) for message, part in zip(messages, kept_parts[1:-1], strict=True)]
    return [message for message in rest if message is not None], kept_parts


def _remains(message: Message, rendered: str) -> Message | None:
    """The message as far as its rendering survived; None if none of its text did."""
    text = rendered
    while text.startswith("<|") and "|>" in text:
        text = text[text.index("|>") + 2 :]
    text = text.split("<|.|>", 1)[0].split("<|end|>", 1)[0]
    if not text:
        return None
    whole = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**whole, "content": text}
