"""Query for recall, derived from the newest turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.history.embedded import authored_text
from proxy.core.history.sentences import identifiers
from proxy.core.history.turns import is_result
from proxy.core.request import Message, text_of
from proxy.recall.dates import days_in
from proxy.recall.passages import DAY
from proxy.recall.words import folded, terms

_FEW = 3
"""Terms below which a message leans on what was said before it ("yes, do that")."""
_LEANS = 0.5
"""Weight of what it leans on; where it says something of its own, all that it leans on together weighs no more than that."""
_NAMED_DAY = 2.0
"""Weight of a day that is named: nobody names one in passing."""
_MOST_TERMS = 48
_LONGEST = 2_000
"""Characters at either end of a message that tell what it is about; what lies between is pasted."""
_IDENTIFIERS = 600
"""Characters of identifiers that are taken from the newest tool results."""
_ENDS = ".!?\u3002\uff01\uff1f\u061f\n"
_QUESTION = re.compile(f"(?<![^{_ENDS}])[^{_ENDS}]*[?\uff1f\u061f]")
"""A sentence that ends in a question mark, also those of Chinese and Arabic; looked for from where one may begin only."""
_OTHER_TEXT, _ENOUGH = 0.5, 2
"""Weight of what a message says besides its question, where that has so many terms of its own. However much that is, all
of it together weighs no more than twice the question: it must not drown it.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """Terms with their weights; empty: nothing is looked for."""

    terms: dict[str, float]
    asks: bool
    """Whether the user asks something."""
    sought: bool = False
    """Whether the model searches for it: then the best that there is will do."""
    leant: frozenset[str] = frozenset()
    """Those of the terms that are taken from what was said before, on which a short message leans."""
    leans_on: frozenset[int] = frozenset()
    """The indexes of the messages that they are taken from, which have them all: that these fit tells nothing."""


def asks_the_same(message: Message, query: Query) -> bool:
    """Return whether a user's message asks for at least half of what the query is about."""
    if message.get("role") != "user" or _QUESTION.search(text := authored_text(message)) is None:
        return False
    having = _weighted(text[-2 * _LONGEST :], 1.0)
    shared = sum(weight for term, weight in query.terms.items() if term in having)
    return 2 * shared >= sum(query.terms.values())


def query_of(messages: Sequence[Message], newest: int) -> Query:
    """Derive the query of the turn that begins with the user message at `newest`."""
    text = authored_text(messages[newest])
    text = text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}\n{text[-_LONGEST:]}"
    questions = " ".join(_QUESTION.findall(text))
    weights = _weighted(questions, 1.0)
    others = _weighted(text, 1.0)
    share = min(_OTHER_TEXT, 2 * len(weights) / len(others)) if len(weights) >= _ENOUGH else 1.0
    for term, weight in others.items():
        weights.setdefault(term, weight * share)
    direct = frozenset(weights)
    before = range(max(0, newest - 2), newest) if len(weights) < _FEW else range(0)
    for term, weight in _leant_on([messages[at] for at in before], sum(weights.values())).items():
        weights.setdefault(term, weight)
    leant = frozenset(weights) - direct
    results = [message for message in messages[newest + 1 :] if is_result(message)]
    named = identifiers((text_of(message) for message in results), limit=_IDENTIFIERS)
    for term, weight in _weighted(" ".join(named), _LEANS).items():
        weights.setdefault(term, weight)
    terms_ = dict(list(weights.items())[:_MOST_TERMS])
    return Query(terms_, bool(questions), leant=leant, leans_on=frozenset(before))


def sought(text: str) -> Query:
    """Derive the query from the words that a model searches for."""
    return Query(dict(list(_weighted(text, 1.0).items())[:_MOST_TERMS]), asks=True, sought=True)


def _leant_on(before: Sequence[Message], direct: float) -> dict[str, float]:
    """The terms of the last messages, the newest first, beside terms of a message's own that weigh so much."""
    found: dict[str, float] = {}
    for message in reversed(before):
        if message.get("role") in {"user", "assistant"}:
            found = _weighted(text_of(message)[-_LONGEST:], _LEANS) | found
    share = min(1.0, direct / sum(found.values())) if direct and found else 1.0
    return {term: weight * share for term, weight in found.items()}


def _weighted(text: str, weight: float) -> dict[str, float]:
    days = {DAY + day: weight * _NAMED_DAY for _, day in days_in(folded(text))}
    return days | dict.fromkeys(terms(text), weight)
