"""The summary blocks in what stands for the covered part of a history: read, and with another text in one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from proxy.history.checkpoint import By
from proxy.history.marks import CLOSE, EXTRACT, HEADING, MORE_SAID, NAMES, OPEN, carried_rules, is_summary
from proxy.neutral.request import Message
from proxy.shortening.summary import plain

_BLOCK = re.compile(f"{re.escape(OPEN)}\n(.*?)\n{re.escape(CLOSE)}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BlockText:
    """One block: what was written, and what code put behind it."""

    message: int
    start: int
    end: int
    """Characters of the message's content between which the inside of the block stands."""
    text: str
    appended: str
    rules: tuple[str, ...]
    by: By


def blocks_in(messages: Sequence[Message]) -> list[BlockText]:
    """All blocks, oldest first."""
    return [block for at, message in enumerate(messages) for block in _blocks_of(at, message)]


def with_text(messages: Sequence[Message], block: BlockText, text: str) -> list[Message]:
    """The messages with another text in a block. It closes no block and opens none, and what code appended stays."""
    inside = plain(text) + block.appended
    content = messages[block.message]["content"]
    changed = content[: block.start] + inside + content[block.end :]
    return [
        {**message, "content": changed} if at == block.message else message
        for at, message in enumerate(messages)
    ]


def told(
    blocks: Sequence[BlockText], count: Callable[[str], int], *, edited: bool
) -> list[dict[str, object]]:
    """The blocks as they are told; `edited`: the newest of them was."""
    newest = len(blocks) - 1
    return [
        {
            "index": index,
            "text": block.text,
            "appended": block.appended.strip("\n"),
            "rules": list(block.rules),
            "by": "edited" if edited and index == newest else block.by,
            "tokens": count(block.text + block.appended),
        }
        for index, block in enumerate(blocks)
    ]


def _blocks_of(at: int, message: Message) -> Iterator[BlockText]:
    if not is_summary(message):
        return
    for found in _BLOCK.finditer(message["content"]):
        inside = found[1]
        end = _end_of_text(inside)
        one: Message = {**message, "content": found[0]}
        by: By = "extract" if inside.startswith(f"{EXTRACT}\n") else "written"
        text = inside[:end].removeprefix(f"{EXTRACT}\n")
        rules = tuple(carried_rules(one))
        yield BlockText(at, found.start(1), found.end(1), text, inside[end:], rules, by)


def _end_of_text(inside: str) -> int:
    """Where begins what code put behind a text: more that the user said, names, the user's rules."""
    end = len(inside)
    for mark in (HEADING, NAMES, MORE_SAID):
        place = inside.rfind(f"\n{mark}", 0, end)
        end = place if place >= 0 else end
    return end
