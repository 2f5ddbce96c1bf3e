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
from operator import itemgetter, mul, not_

from proxy.core.history.embedded import authored_text
from proxy.core.history.sentences import identifiers
from proxy.core.history.turns import is_result
from proxy.core.request import Message, text_of
from proxy.recall.passages import DAY, MessagePassages, day_term, spoken_text, terms_and_days

_RESULTS = 0.5
"""Weight of the identifiers in the newest results of tools."""
_NAMED_DAY = 2.0
"""Weight of a day that is named: nobody names one in passing."""
_MOST_TERMS = 48
_SHORT = 25
"""Terms of a message that may ask for something and nothing else."""
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
_SHARE_OF_BEST, _SHARE_OF_OTHERS = 0.2, 0.2
"""Share of the best passage's score that a passage needs: one that has words of the query which none before it has; others."""
_SAME = 0.5
"""Share of a statement's terms that one later on has, which puts something else in its place."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Thresholds for passages, in standard deviations of the scores of the whole conversation.

    Of few values none can lie far out, at most the root of their number, so of a short conversation less is asked.
    """

    best: float
    """Of the best passage over the mean: it fits the turn as no ordinary place of the conversation does."""
    ahead: float
    """Share of its score that no passage still in the prompt exceeds: what is talked about now needs no recalling."""
    roots: float
    """Shares of the root of their number up to which this is asked."""
    covers: float
    """Share of the query's weight that a passage has itself."""


QUESTION = Bar(best=3.0, ahead=1.0, roots=4.0, covers=0.0)
REQUEST = Bar(best=3.0, ahead=1.0, roots=4.0, covers=0.25)
"""A short message without a question mark."""
STATEMENT = Bar(best=5.5, ahead=0.5, roots=2.0, covers=0.0)
"""Who asks nothing mostly needs nothing."""
SEARCH = Bar(best=0.0, ahead=1e9, roots=1.0, covers=0.0)
"""Who searches gets the best that there is."""


@dataclass(frozen=True, slots=True)
class Query:
    """Terms with their weights; empty: nothing is looked for."""

    terms: Mapping[str, float]
    bar: Bar


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the passages of a conversation for a query, in the order of the conversation."""

    query: Query
    scores: Sequence[float]
    covers: Sequence[float]
    """Share of the weight of the query's terms, as far as the conversation has them, that each passage itself has."""
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
    results = [message for message in messages[newest + 1 :] if is_result(message)]
    named = identifiers((text_of(message) for message in results), limit=_IDENTIFIERS)
    weights = weights | _weighted(" ".join(named), _RESULTS) | weights
    short = len(others) <= _SHORT
    bar = (QUESTION if questions else REQUEST) if short else STATEMENT
    return Query(_first(weights), bar)


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
    scores, covers, total = [0.0] * len(places), [0.0] * len(places), 0.0
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    terms_of = [each.places for each in passages]
    for term, weight in query.terms.items():
        # Asked of every message for every term: a look without a call takes half the time.
        having = [(start, terms[term]) for start, terms in zip(starts, terms_of, strict=False) if term in terms]
        found = {start + number: count for start, where in having for number, count in where}
        if term.startswith(DAY):  # a message's day is a term of all of its passages
            written = [at for at, day in enumerate(days) if day is not None and day_term(day) == term]
            found |= {place: 1 for at in written for place in range(starts[at], starts[at + 1])}
        idf = weight * log(1 + (len(places) - len(found) + 0.5) / (len(found) + 0.5)) ** _RARITY
        total += idf if found else 0.0
        for at, count in found.items():
            norm = _K1 * (1 - _B + _B * lengths[at] / mean)
            scores[at] += idf * count * (_K1 + 1) / (count + norm)
            covers[at] += idf
    roots = [sqrt(len(each.spans)) for each in passages]
    scores = [score / roots[index] for score, (index, _) in zip(_with_context(scores), places, strict=True)]
    return Ranking(query, scores, [each / (total or 1.0) for each in covers], places, days, near)


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
        order = _fused((order, _outstanding(_by_nearness(ranking, ranking.near), lost)), ranking.near)
    chosen: list[Passage] = []
    seen: set[str] = set()
    words: set[str] = set()
    live = [at for at, each in enumerate(passages) if each.spans and not lost(at)]
    best = ranking.scores[order[0]] if order else 0.0
    for at in order:
        index, number = ranking.places[at]
        start, end = passages[index].spans[number]
        text = spoken_text(messages[index])[start:end]
        if text in seen or in_prompt(text) or _only_asks(text):
            continue
        seen.add(text)
        terms = {term for term, where in passages[index].places.items() if number in map(itemgetter(0), where)}
        own = terms & ranking.query.terms.keys()
        if own <= words and ranking.near is None and ranking.scores[at] < _SHARE_OF_OTHERS * best:
            continue
        newer = (passages[at].places.keys() for at in live if messages[at].get("role") == messages[index].get("role"))
        if own and any(own <= later and len(terms & later) > _SAME * len(terms) for later in newer):
            continue
        words |= own
        tokens = AROUND + cost(text)
        if tokens <= room:
            room -= tokens
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


def _only_asks(text: str) -> bool:
    """Return whether a text is questions and nothing else: a question is no answer."""
    return text.rstrip().endswith(("?", "\uff1f", "\u061f")) and not _QUESTION.sub("", text).strip()


def _outstanding(ranking: Ranking, lost: Callable[[int], bool]) -> list[int]:
    """Places of the passages that stand out, best first; none if not even the best one does."""
    scores, bar = ranking.scores, ranking.query.bar
    gone = [lost(index) for index, _ in ranking.places]
    if not any(gone):
        return []
    mean = sum(scores) / len(scores)
    # This is done for every passage of a long conversation: loops that run in C take a third.
    deviation = sqrt(max(0.0, sum(map(mul, scores, scores)) / len(scores) - mean * mean))
    root = sqrt(len(scores)) / bar.roots
    best = max(compress(scores, gone))
    here = max(compress(scores, map(not_, gone)), default=0.0)
    if not best or best < mean + min(bar.best, root) * deviation or here > bar.ahead * best:
        return []
    if max(compress(ranking.covers, gone)) < bar.covers:
        return []
    found = [at for at, score in enumerate(scores) if gone[at] and score >= best * _SHARE_OF_BEST]
    return sorted(found, key=lambda at: (-scores[at], -at))


def _by_nearness(ranking: Ranking, near: Sequence[float]) -> Ranking:
    """Score the same passages by how near they are; one without a vector comes last, and does not pull the mean down."""
    least = min(filter(None, near), default=0.0)
    return replace(ranking, scores=[max(0.0, score - least) for score in near])


def _fused(orders: Sequence[Sequence[int]], near: Sequence[float]) -> list[int]:
    """Join orders of places, each with the best first, into one; those without a vector count twice where they stand."""
    scores: dict[int, float] = {}
    for order in orders:
        for position, at in enumerate(order):
            scores[at] = scores.get(at, 0.0) + (1 if near[at] else 2) / (_RANKED + position)
    return sorted(scores, key=lambda at: -scores[at])
