"""What a user laid down, taken word for word: summaries by a model paraphrase rules, or drop them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.history.identifiers import newest_within
from proxy.history.tooltext import spoken
from proxy.neutral.request import Message, text_of

HEADING = "Rules in the user's own words:"
"""Stands before the sentences in a summary, so that they are found there when summaries are merged."""

_RULE = re.compile(
    r"\b(?:must(?: not|n.t)?|never|always|do not|don.t|shall(?: not)?|only use|use only|make sure|ensure|required?"
    r"|no more than|at most|at least|instead of|avoid|without)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]{8,300}[.!?]?")
_LONGEST_TEXT = 20_000
"""Characters of one message that are looked through: rules stand in what people type, not in what they paste."""


def constraints(messages: Sequence[Message], *, limit: int) -> list[str]:
    """Sentences of users that state a rule, in order and once each; the newest, `limit` characters together.

    Tool results in their messages are not their words.
    """
    found: dict[str, None] = {}
    for message in messages:
        for sentence in _stated(message):
            found.pop(sentence, None)
            found[sentence] = None
    return newest_within(found, limit=limit)


def _stated(message: Message) -> list[str]:
    if message.get("role") == "assistant":
        return _carried(text_of(message))
    if message.get("role") != "user":
        return []
    said = spoken(message)[:_LONGEST_TEXT]
    sentences = (match.group().strip() for match in _SENTENCE.finditer(said))
    return [sentence for sentence in sentences if _RULE.search(sentence)]


def _carried(text: str) -> list[str]:
    """Sentences that an earlier summary carries."""
    carried: list[str] = []
    for block in text.split(f"\n{HEADING}\n")[1:]:
        for line in block.split("\n"):
            if not line.startswith("- "):
                break
            carried.append(line[2:])
    return carried
