"""Blocks recalled for a prompt: where they stand in front of user messages, and when an earlier one is removed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.core.request import Message
from proxy.recall.block import with_block
from proxy.recall.choosing import Passage


@dataclass(frozen=True, slots=True)
class Block:
    """Passages recalled for one turn."""

    text: str
    passages: tuple[Passage, ...]
    tokens: float
    """Predicted."""


@dataclass(frozen=True, slots=True)
class RecalledBlocks:
    """The blocks in a prompt, by the index in its history of the user message that each stands in front of."""

    blocks: Mapping[int, Block] = field(default_factory=dict)
    newest: Block | None = None
    """That of the newest turn, which is among them."""
    cramped: bool = False
    """Whether most of what the newest turn needs found no room."""

    @property
    def tokens(self) -> int:
        """Tokens of all blocks."""
        return round(sum(block.tokens for block in self.blocks.values()))

    @property
    def newest_tokens(self) -> int:
        """Tokens of the newest turn's block, which is dropped when it gets in the way."""
        return 0 if self.newest is None else round(self.newest.tokens)

    def put(self, history: Sequence[Message]) -> list[Message]:
        """A history with the blocks in their places."""
        messages = list(history)
        for index, block in self.blocks.items():
            messages[index] = with_block(messages[index], block.text)
        return messages


NOTHING = RecalledBlocks()


def stays(tokens: float, behind: float, *, trigger: float, target: float) -> bool:
    """Return whether a block of an earlier turn stays in place: the choice that costs the backend less to read.

    Taken out, the `behind` tokens that follow it are read once more. Left, its `tokens` bring the next compaction nearer,
    after which `target` of the window is read anew for every `trigger - target` that it grew.
    """
    return tokens * target / (trigger - target) <= behind
