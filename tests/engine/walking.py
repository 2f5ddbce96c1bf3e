"""Conversations with the walk model, whose every answer is known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LISTED = 80
"""Words of the cycle in each user message of a conversation: with the rest about 100 tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, how it is asked for, and the one right answer."""

    content: str
    max_tokens: int
    stream: bool
    expected: str


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def after(word: str) -> dict[str, Any]:
    """A question that the walk answers with what follows the word. Only with its space before it is it a word."""
    return user(f"Go on after {word}, 1 2 3!")


def stretch(words: Sequence[str], last: str, count: int) -> list[str]:
    """The next `count` words of the cycle after a word."""
    start = words.index(last) + 1
    return [words[(start + step) % len(words)] for step in range(count)]


def spoken(words: Sequence[str], last: str, count: int) -> str:
    """An answer of `count` tokens: each word is one, with the space before it."""
    return "".join(f" {word}" for word in stretch(words, last, count))


def conversation(words: Sequence[str], turns: int) -> list[Turn]:
    """User messages of about 100 tokens with answers of 60 to 120, every second one streamed."""
    made: list[Turn] = []
    for number in range(turns):
        start = number * 131
        listed = [words[(start + step) % len(words)] for step in range(LISTED)]
        count = 60 + number * 17 % 61
        made.append(
            Turn(
                content=f"Turn {number + 1}. Now comes the next part of the list: {' '.join(listed)}",
                max_tokens=count,
                stream=number % 2 == 0,
                expected=spoken(words, listed[-1], count),
            )
        )
    return made
