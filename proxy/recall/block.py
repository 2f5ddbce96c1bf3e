"""Blocks of recalled passages in a prompt, and the tool with which the model searches for more.

A block is in front of the user's own words, between marks that no text in it can forge.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

from proxy.core.history.marks import RECALLED, RECALLED_END, defanged
from proxy.core.history.turns import in_front
from proxy.core.piece import CallPart, arguments_of
from proxy.core.request import Message
from proxy.recall.ranking import Passage

NAME = "search_conversation"
_LONGEST_QUERY = 1_000
NOTHING_LOST = "Nothing was taken out of this conversation: all of it is above."
NOTHING_FOUND = "Nothing was found beyond what is above. Try other words that may have been used then, or ask the user."
NO_ROOM = "No room is left for what would be found. Answer with what is above."
NO_QUERY = 'The arguments hold no query. Call the tool with {"query": "words to look for"}.'
_OMISSION = "[…]"
_ROLES = {"user": "", "assistant": "answer"}
"""Words for the speaker of a passage by role; any other role is named as it is."""
_SPEAKER = re.compile(
    r"(?:^|(?<=[\r\v\f\x1c-\x1e\x85\u2028\u2029]))"
    r"(?=(?:[^\S\n]|[*_#>\u200b\ufeff]){0,8}(?:user|assistant|tool|function|system|developer)\b[^\n:\uff1a]{0,80}[:\uff1a])",
    re.MULTILINE | re.IGNORECASE,
)
"""Beginnings of lines in a passage, after any kind of line break, that read as if another speaker went on from there."""
_ITEM = re.compile(r"(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])(?=- )")
"""Beginnings of lines in a passage that would look like the next item of the block's list."""


@dataclass(frozen=True, slots=True)
class Block:
    """Passages recalled for one turn."""

    text: str
    passages: tuple[Passage, ...]
    tokens: float
    """Predicted tokens of the text."""


@dataclass(frozen=True, slots=True)
class RecalledBlocks:
    """Blocks in a prompt, by the index in its history of the message, the user's or a result, that each is in front of."""

    blocks: Mapping[int, Block] = field(default_factory=dict)
    newest: Block | None = None
    """Block of the newest turn, also among `blocks`."""
    cramped: bool = False
    """Whether a compaction is worth it to make room: the best passage, or more than half of those found, did not fit."""

    @property
    def tokens(self) -> int:
        """Tokens of all blocks."""
        return round(sum(block.tokens for block in self.blocks.values()))

    @property
    def newest_tokens(self) -> int:
        """Tokens of the newest turn's block, which is dropped when its room is needed."""
        return 0 if self.newest is None else round(self.newest.tokens)

    def put(self, history: Sequence[Message]) -> list[Message]:
        """Return a history with each block in front of its message's own words, which stay unchanged."""
        messages = list(history)
        for index, block in self.blocks.items():
            messages[index] = in_front(messages[index], block.text)
        return messages


NOTHING = RecalledBlocks()


def block_of(messages: Sequence[Message], passages: Sequence[Passage]) -> str:
    """Format passages of these messages as a block, in the order of the conversation.

    Each message is an item of a list, because a weak model continues lines like `user: …` as a transcript. Items not from the user
    name their speaker. Dates precede items where the history gives them.
    """
    # SmolLM2 continued such a transcript in its answer. The end mark has no label for the same reason: models echoed
    # it.
    return f"{RECALLED}\n{found_text(messages, passages)}\n{RECALLED_END}"


def found_text(messages: Sequence[Message], passages: Sequence[Passage]) -> str:
    """Format passages as the result of a search."""
    return "\n".join(_lines(messages, passages))


def _lines(messages: Sequence[Message], passages: Sequence[Passage]) -> Iterator[str]:
    day = None
    for index, parts in groupby(sorted(passages, key=attrgetter("index", "start")), key=attrgetter("index")):
        pieces = list(parts)
        if pieces[0].day not in (None, day):
            day = pieces[0].day
            yield f"({day.isoformat()})"
        later = "later: " if any(each.later for each in pieces) else ""
        yield f"- {later}{_speaker(messages[index])}{_joined(pieces)}"


def _speaker(message: Message) -> str:
    """Return the speaker of a message in parentheses; empty for a user without a name."""
    name, role = message.get("name"), str(message.get("role"))
    named = f" {defanged(name)}" if isinstance(name, str) and name.isprintable() else ""
    speaker = f"{_ROLES.get(role, role)}{named}".strip()
    return f"({speaker}) " if speaker else ""


def _joined(pieces: Sequence[Passage]) -> str:
    """Join the recalled passages of one message, with a mark where more than white space is left out between two."""
    text = pieces[0].text
    for before, after in pairwise(pieces):
        gap = "\n" if after.start - before.end <= 2 else f" {_OMISSION} "
        text += gap + after.text
    return _ITEM.sub("  ", _SPEAKER.sub("> ", defanged(text)))


def search_tool(name: str) -> dict[str, Any]:
    """Return the tool in the form of the chat completions API. It must never change: prompts begin with it, and are cached."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Search what was said earlier in this conversation, word for word. Use it when something is "
            "needed that was said before and is not in the messages above, which may have been shortened.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words that were likely used then: names, terms."}
                },
                "required": ["query"],
            },
        },
    }


def query_in(call: CallPart) -> str:
    """Return the query of a call; empty if it cannot be parsed."""
    query = arguments_of(call.arguments).get("query")
    return query.strip()[:_LONGEST_QUERY] if isinstance(query, str) else ""
