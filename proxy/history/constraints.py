"""What a user laid down, taken word for word: summaries by a model paraphrase rules, or drop them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.history.identifiers import newest_within
from proxy.history.marks import carried_rules, is_summary
from proxy.history.tooltext import own_words
from proxy.neutral.request import Message

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

    Those that an earlier summary of Spillway's carries count; what tools, pages or models say does not, wherever it stands.
    """
    found: dict[str, None] = {}
    for message in messages:
        for sentence in carried_rules(message) if is_summary(message) else _stated(message):
            found.pop(sentence, None)
            found[sentence] = None
    return newest_within(found, limit=limit)


def _stated(message: Message) -> list[str]:
    if message.get("role") != "user":
        return []
    said = own_words(message)[:_LONGEST_TEXT]
    sentences = (match.group().strip() for match in _SENTENCE.finditer(said))
    return [sentence for sentence in sentences if _RULE.search(sentence)]
