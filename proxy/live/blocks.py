"""The summary blocks in what stands for the covered part of a history."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from proxy.history.checkpoint import By
from proxy.history.marks import CLOSE, EXTRACT, HEADING, MORE_SAID, NAMES, OPEN, carried_rules, is_summary
from proxy.neutral.request import Message

_BLOCK = re.compile(f"{re.escape(OPEN)}\n(.*?)\n{re.escape(CLOSE)}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BlockText:
    """One block: what was written, and what code put behind it."""

    text: str
    appended: str
    rules: tuple[str, ...]
    by: By


def blocks_in(messages: Sequence[Message]) -> list[BlockText]:
    """All blocks, oldest first."""
    return [block for message in messages for block in _blocks_of(message)]


def described(blocks: Sequence[BlockText], count: Callable[[str], int]) -> list[dict[str, object]]:
    """JSON of the blocks; `count` gives the tokens of a text."""
    return [
        {
            "index": index,
            "text": block.text,
            "appended": block.appended.strip("\n"),
            "rules": list(block.rules),
            "by": block.by,
            "tokens": count(block.text + block.appended),
        }
        for index, block in enumerate(blocks)
    ]


def _blocks_of(message: Message) -> Iterator[BlockText]:
    if not is_summary(message):
        return
    for found in _BLOCK.finditer(message["content"]):
        inside = found[1]
        end = _end_of_text(inside)
        one: Message = {**message, "content": found[0]}
        by: By = "extract" if inside.startswith(f"{EXTRACT}\n") else "written"
        text = inside[:end].removeprefix(f"{EXTRACT}\n")
        rules = tuple(carried_rules(one))
        yield BlockText(text, inside[end:], rules, by)


def _end_of_text(inside: str) -> int:
    """Where begins what code put behind a text: more that the user said, names, the user's rules."""
    end = len(inside)
    for mark in (HEADING, NAMES, MORE_SAID):
        place = inside.rfind(f"\n{mark}", 0, end)
        end = place if place >= 0 else end
    return end
