"""Ranking of passages by a query: BM25 over one conversation, in which the neighbours of a passage count too.

BM25: Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate, chain
from math import log

from proxy.recall.passages import DAY, MessagePassages, term_of
from proxy.recall.query import Query

_K1, _B = 1.2, 0.6
_RARITY = 1.3
"""Exponent of the weight of rare terms: what most of a conversation has in it tells little of a passage."""
_BEFORE, _AFTER = 0.5, 0.3
"""Share of its score that a passage gives to the next one and the one before: a question finds its answer."""
_AROUND, _REACH = 1.0, 4
"""Weight of the mean score of so many passages on either side: what was talked about there."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the passages of a conversation for a query, in the order of the conversation."""

    scores: Sequence[float]
    core: Sequence[float]
    """The weight of the terms asked for that each passage itself has."""
    places: Sequence[tuple[int, int]]
    """Of each passage the index of its message, and its number there."""
    asks: bool
    """Whether the user asked something."""
    days: Sequence[date | None]
    """The day on which each message was written, or the last one before it that tells."""
    sought: bool = False
    """Whether the model searches for it."""
    near: Sequence[float] | None = None
    """How near each passage is to the query by its vector, where there are vectors."""


def rank(passages: Sequence[MessagePassages], query: Query, near: Sequence[float] | None = None) -> Ranking:
    """Rank what messages say by how well it fits a query."""
    days = _days(passages)
    places = [(index, number) for index, each in enumerate(passages) for number in range(len(each.spans))]
    lengths = list(chain.from_iterable(each.lengths for each in passages))
    starts = [0, *accumulate(len(each.spans) for each in passages)]
    scores, core = [0.0] * len(places), [0.0] * len(places)
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    terms_of = [each.places for each in passages]
    for term, weight in query.terms.items():
        found = _found(term, terms_of, starts, days)
        if term in query.leant:
            found = {at: count for at, count in found.items() if places[at][0] not in query.leans_on}
        idf = weight * log(1 + (len(places) - len(found) + 0.5) / (len(found) + 0.5)) ** _RARITY
        for at, count in found.items():
            norm = _K1 * (1 - _B + _B * lengths[at] / mean)
            scores[at] += idf * count * (_K1 + 1) / (count + norm)
            core[at] += idf if weight >= 1 else 0.0
    return Ranking(_with_context(scores), core, places, query.asks, days, query.sought, near)


def _found(
    term: str,
    terms_of: Sequence[Mapping[str, Sequence[tuple[int, int]]]],
    starts: Sequence[int],
    days: Sequence[date | None],
) -> dict[int, int]:
    """The passages with a term, and how often they have it; a message's day is a term of all of its passages."""
    # Asked of every message for every term: a look without a call takes half the time.
    having = [(start, terms[term]) for start, terms in zip(starts, terms_of, strict=False) if term in terms]
    found = {start + number: count for start, places in having for number, count in places}
    if term.startswith(DAY):
        for index, day in enumerate(days):
            if day is not None and term_of(day) == term:
                found.update(dict.fromkeys(range(starts[index], starts[index + 1]), 1))
    return found


def _with_context(scores: Sequence[float]) -> list[float]:
    last, total = len(scores), [0.0, *accumulate(scores)]
    # Sums of all before the end and before the beginning of what is around each: without a branch, for this is what takes long.
    upto = (total[_REACH + 1 :] + [total[-1]] * _REACH)[:last] if last > _REACH else [total[-1]] * last
    before = ([0.0] * _REACH + total)[:last]
    share = _AROUND / (2 * _REACH + 1)
    return [
        score + _BEFORE * previous + _AFTER * following + share * (until - since)
        for score, previous, following, until, since in zip(
            scores, (0.0, *scores), (*scores[1:], 0.0), upto, before, strict=False
        )
    ]


def _days(passages: Sequence[MessagePassages]) -> list[date | None]:
    day: date | None = None
    days: list[date | None] = []
    for each in passages:
        day = each.day or day
        days.append(day)
    return days
