"""Recall by words and meaning: the query of a turn, the ranking of passages by it, and the choice of those worth their tokens.

Ranking is BM25 over one conversation (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, section 3), in
which the neighbours of a passage count too. Words find what was said in the words of the question, vectors what was said in
others: each alone decides what stands out, and reciprocal ranks (Cormack, Clarke and Büttcher, 2009) join the two orders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import accumulate, chain, compress
from math import log, sqrt
from operator import mul, not_

from proxy.core.history.embedded import authored_text
from proxy.core.history.sentences import identifiers
from proxy.core.history.turns import is_result
from proxy.core.request import Message, text_of
from proxy.recall.passages import DAY, MessagePassages, day_term, spoken_text, terms_and_days

_FEW = 3
"""Terms below which a message leans on what was said before it ("yes, do that")."""
_LEANS = 0.5
"""Weight of what it leans on; where it says something of its own, all that it leans on together weighs no more than that."""
_NAMED_DAY = 2.0
"""Weight of a day that is named: nobody names one in passing."""
_MOST_TERMS = 48
_LONGEST = 2_000
"""Characters at either end of a message that show what it is about; what lies between is pasted."""
_IDENTIFIERS = 600
"""Characters of identifiers that are taken from the newest tool results."""
_ENDS = ".!?\u3002\uff01\uff1f\u061f\n"
_QUESTION = re.compile(f"(?<![^{_ENDS}])[^{_ENDS}]*[?\uff1f\u061f]")
"""A sentence that ends in a question mark, also those of Chinese and Arabic; looked for from where one may begin only."""
_OTHER_TEXT, _ENOUGH = 0.5, 2
"""Weight of what a message says besides its question, where that has so many terms of its own. However much that is, all
of it together weighs no more than twice the question: it must not drown it.
"""
_K1, _B = 1.2, 0.6
_RARITY = 1.3
"""Exponent of the weight of rare terms: what most of a conversation has in it tells little of a passage."""
_BEFORE, _AFTER = 0.5, 0.3
"""Share of its score that a passage gives to the next one and the one before: a question finds its answer."""
_AROUND, _REACH = 1.0, 4
"""Weight of the mean score of so many passages on either side: what was talked about there."""
AROUND = 8.0
"""Tokens that a passage takes besides its text."""
_RANKED = 60
"""The constant of reciprocal ranks: the first few count alike."""
_ALL = 0.999
"""Share of the most that any passage has of what is asked for; sums of floats are not exact."""
_SHARE_OF_BEST = 0.2
"""Share of the best passage's score below which nothing is worth its tokens beside it."""
_MISSES = 8
"""Passages in a row that are too long for the room that is left, after which no more are tried."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Thresholds for passages, in standard deviations of the scores of the whole conversation.

    Of few values none can lie far out, at most the root of their number, so of a short conversation less is asked.
    """

    best: float
    """Of the best passage over the mean: it fits the turn as no ordinary place of the conversation does."""
    ahead: float
    """Of the same over the best one that is still in the prompt: what is talked about now needs no recalling."""
    least: float
    """Of every passage over the mean."""
    roots: float
    """Shares of the root of their number up to which this is asked."""


QUESTION = Bar(best=3.0, ahead=0.7, least=1.0, roots=4.0)
STATEMENT = Bar(best=5.5, ahead=2.0, least=2.0, roots=2.0)
"""Who asks nothing mostly needs nothing."""
SEARCH = Bar(best=0.0, ahead=-1e9, least=0.0, roots=1.0)
"""Who searches gets the best that there is."""


@dataclass(frozen=True, slots=True)
class Query:
    """Terms with their weights; empty: nothing is looked for."""

    terms: Mapping[str, float]
    bar: Bar
    borrowed: frozenset[str] = frozenset()
    """Those of the terms that are taken from what was said before, on which a short message leans."""
    borrowed_from: range = range(0)
    """Indexes of the messages that they are taken from, which have them all: that these fit shows nothing."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the passages of a conversation for a query, in the order of the conversation."""

    bar: Bar
    scores: Sequence[float]
    core: Sequence[float]
    """The weight of the terms asked for that each passage itself has."""
    places: Sequence[tuple[int, int]]
    """Of each passage the index of its message, and its number there."""
    days: Sequence[date | None]
    """The day on which each message was written, or the last one before it that says one."""
    near: Sequence[float] | None = None
    """How near each passage is to the query by its vector, where there are vectors; 0 for one without."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that is recalled: from the message at `index`, where its text lies, and when it was written."""

    index: int
    start: int
    end: int
    text: str
    day: date | None
    tokens: float
    """With what names it in the block."""


def query_of(messages: Sequence[Message], newest: int) -> Query:
    """Derive the query of the turn that begins with the user message at `newest`."""
    text = authored_text(messages[newest])
    text = text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}\n{text[-_LONGEST:]}"
    questions = " ".join(_QUESTION.findall(text))
    weights, others = _weighted(questions, 1.0), _weighted(text, 1.0)
    share = min(_OTHER_TEXT, 2 * len(weights) / len(others)) if len(weights) >= _ENOUGH else 1.0
    # The first terms are those that stay, each with the first weight that it got.
    weights = weights | {term: weight * share for term, weight in others.items()} | weights
    own = frozenset(weights)
    before = range(max(0, newest - 2), newest) if len(weights) < _FEW else range(0)
    weights = weights | _borrowed(messages[before.start : before.stop], sum(weights.values())) | weights
    borrowed = weights.keys() - own
    results = [message for message in messages[newest + 1 :] if is_result(message)]
    named = identifiers((text_of(message) for message in results), limit=_IDENTIFIERS)
    weights = weights | _weighted(" ".join(named), _LEANS) | weights
    return Query(_first(weights), QUESTION if questions else STATEMENT, frozenset(borrowed), before)


def search_query(text: str) -> Query:
    """Derive the query from the words that a model searches for."""
    return Query(_first(_weighted(text, 1.0)), SEARCH)


def asks_the_same(message: Message, query: Query) -> bool:
    """Return whether a user's message asks for at least half of what the query is about."""
    if message.get("role") != "user" or _QUESTION.search(text := authored_text(message)) is None:
        return False
    having = _weighted(text[-2 * _LONGEST :], 1.0)
    shared = sum(weight for term, weight in query.terms.items() if term in having)
    return 2 * shared >= sum(query.terms.values())


def _borrowed(before: Sequence[Message], own: float) -> dict[str, float]:
    """Weigh the terms of the last messages, the newest first, beside a message's own terms, which weigh so much."""
    found: dict[str, float] = {}
    for message in reversed(before):
        if message.get("role") in {"user", "assistant"}:
            found = _weighted(text_of(message)[-_LONGEST:], _LEANS) | found
    share = min(1.0, own / sum(found.values())) if own and found else 1.0
    return {term: weight * share for term, weight in found.items()}


def _weighted(text: str, weight: float) -> dict[str, float]:
    return {term: weight * (_NAMED_DAY if term.startswith(DAY) else 1.0) for term in terms_and_days(text)}


def _first(weights: dict[str, float]) -> dict[str, float]:
    return dict(list(weights.items())[:_MOST_TERMS])


def rank(passages: Sequence[MessagePassages], query: Query, near: Sequence[float] | None = None) -> Ranking:
    """Rank the passages of each message by how well they fit a query; `near` as in `Ranking`."""
    days: list[date | None] = []
    for each in passages:
        days.append(each.day or (days[-1] if days else None))
    places = [(index, number) for index, each in enumerate(passages) for number in range(len(each.spans))]
    lengths = list(chain.from_iterable(each.lengths for each in passages))
    starts = [0, *accumulate(len(each.spans) for each in passages)]
    scores, core = [0.0] * len(places), [0.0] * len(places)
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    terms_of = [each.places for each in passages]
    for term, weight in query.terms.items():
        # Asked of every message for every term: a look without a call takes half the time.
        having = [(start, terms[term]) for start, terms in zip(starts, terms_of, strict=False) if term in terms]
        found = {start + number: count for start, where in having for number, count in where}
        if term.startswith(DAY):  # a message's day is a term of all of its passages
            written = [at for at, day in enumerate(days) if day is not None and day_term(day) == term]
            found |= {place: 1 for at in written for place in range(starts[at], starts[at + 1])}
        if term in query.borrowed:
            found = {at: count for at, count in found.items() if places[at][0] not in query.borrowed_from}
        idf = weight * log(1 + (len(places) - len(found) + 0.5) / (len(found) + 0.5)) ** _RARITY
        for at, count in found.items():
            norm = _K1 * (1 - _B + _B * lengths[at] / mean)
            scores[at] += idf * count * (_K1 + 1) / (count + norm)
            core[at] += idf if weight >= 1 else 0.0
    return Ranking(query.bar, _with_context(scores), core, places, days, near)


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


def choose(
    messages: Sequence[Message],
    passages: Sequence[MessagePassages],
    ranking: Ranking,
    *,
    lost: Callable[[int], bool],
    room: float,
    cost: Callable[[str], float],
    in_prompt: Callable[[str], bool],
) -> list[Passage]:
    """Choose the passages of these messages that a turn needs, best first, within `room` tokens; mostly none.

    `passages` are those of each message, and `ranking` how well they fit the turn. Only what is in messages that the prompt
    has `lost` is recalled, and of that no text which the prompt has all the same. `cost` are the tokens of a text.
    """
    order = _outstanding(ranking, lost)
    if ranking.near is not None:
        order = _fused((order, _outstanding(_by_nearness(ranking, ranking.near), lost)))
    chosen: list[Passage] = []
    seen: set[str] = set()
    misses = 0
    for at in order:
        index, number = ranking.places[at]
        start, end = passages[index].spans[number]
        text = spoken_text(messages[index])[start:end]
        if text in seen or in_prompt(text):
            continue
        seen.add(text)
        tokens = AROUND + cost(text)
        if tokens > room:
            misses += 1
            if misses > _MISSES:
                break
            continue
        room, misses = room - tokens, 0
        chosen.append(Passage(index, start, end, text, ranking.days[index], tokens))
    return chosen


def within(passages: Sequence[Passage], room: float) -> list[Passage]:
    """Select passages, best first, that fit into `room` tokens together."""
    chosen: list[Passage] = []
    for passage in passages:
        if passage.tokens <= room:
            room -= passage.tokens
            chosen.append(passage)
    return chosen


def _outstanding(ranking: Ranking, lost: Callable[[int], bool]) -> list[int]:
    """Places of the passages that stand out, best first; none if not even the best one does."""
    scores, bar = ranking.scores, ranking.bar
    gone = [lost(index) for index, _ in ranking.places]
    if not any(gone):
        return []
    mean = sum(scores) / len(scores)
    # This is done for every passage of a long conversation: loops that run in C take a third.
    deviation = sqrt(max(0.0, sum(map(mul, scores, scores)) / len(scores) - mean * mean))
    root = sqrt(len(scores)) / bar.roots
    best = max(compress(scores, gone))
    here = max(compress(scores, map(not_, gone)), default=0.0)
    if not best or best < max(mean + min(bar.best, root) * deviation, here + bar.ahead * deviation):
        return []
    least = max(mean + min(bar.least, root / 5) * deviation, best * _SHARE_OF_BEST)
    found = [at for at, score in enumerate(scores) if gone[at] and score > 0 and score >= least]
    return _newest_first(found, ranking)


def _newest_first(found: Sequence[int], ranking: Ranking) -> list[int]:
    """Sort places, best first; of those that have all that is asked for, none before a later one, which may correct it."""
    scores = {at: ranking.scores[at] for at in found}
    complete = _ALL * max(map(ranking.core.__getitem__, found), default=0.0)
    highest = 0.0
    for at in found if complete else ():
        if ranking.core[at] >= complete:
            scores[at] = highest = max(highest, scores[at])
    return sorted(found, key=lambda at: (-scores[at], -at))


def _by_nearness(ranking: Ranking, near: Sequence[float]) -> Ranking:
    """Score the same passages by how near they are; one without a vector comes last, and does not pull the mean down."""
    least = min(filter(None, near), default=0.0)
    return replace(ranking, scores=[max(0.0, score - least) for score in near], core=[0.0] * len(ranking.scores))


def _fused(orders: Sequence[Sequence[int]]) -> list[int]:
    """Join orders of places, each with the best first, into one."""
    scores: dict[int, float] = {}
    for order in orders:
        for position, at in enumerate(order):
            scores[at] = scores.get(at, 0.0) + 1 / (_RANKED + position)
    return sorted(scores, key=lambda at: -scores[at])
