"""Recall by words and meaning: the query of a turn, the ranking of passages by it, and the choice of those worth their tokens.

Ranking is BM25 over one conversation (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, section 3), in
which the neighbours of a passage count too. Words find what was said in the words of the question, vectors what was said in
others: each alone decides what stands out, and reciprocal ranks (Cormack, Clarke and Büttcher, 2009) join the two orders.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, reduce
from itertools import accumulate, compress, islice, takewhile
from math import inf, log, sqrt
from operator import mul, not_, or_

from proxy.core.history.embedded import authored_text
from proxy.core.history.sentences import sentences
from proxy.core.request import Message
from proxy.recall.passages import DAY, MessagePassages, asked, day_term, spoken_text, terms_and_days
from proxy.recall.words import terms

_NAMED_DAY = 6.0
"""Weight of a day that is named: nobody names one in passing."""
_MOST_TERMS = 48
_LONGEST = 2_000
"""Characters at either end of a message that show what it is about; what lies between is pasted."""
_RUN = 2
"""User messages before the newest, with no answer between, that belong to what is asked where that asks nothing: a question, and a
text about it."""
_OTHER_TEXT = 0.5
"""Weight of what a message says besides its question, where that has so many terms of its own. However much that is, all
of it together weighs no more than twice the question: it must not drown it.
"""
_K1, _B = 1.2, 0.75
_BEFORE, _AFTER = 0.5, 0.3
"""Share of its score that a passage gives to the next one and the one before: a question finds its answer."""
_OF_BEFORE, _BACK = 0.4, 4
"""Share of the best score of so many messages before that a brief one of the user's has, too, with the words of all of them: it
says something of what was said there, and may change it.
"""
_AROUND, _REACH = 1.0, 4
"""Weight of the mean score of so many passages on either side: what was talked about there."""
AROUND = 8.0
"""Tokens that a passage takes besides its text."""
_RANKED = 60
"""The constant of reciprocal ranks: the first few count alike."""
_SHARE_OF_BEST, _SHARE_OF_OTHERS = 0.2, 0.3
"""Share of the best passage's score that a passage needs: one that has words of the query which none before it has; others."""
_SAME = 0.5
"""Share of a statement's terms that one later on has, which puts something else in its place."""
_FEW = 3
"""Messages of the user's that have a word, up to which a later one of them may put something else in the place of an earlier one."""
_FOLLOWING = 4
"""Brief messages behind a statement that come with it: they may put something else in its place."""
_BAR = 0.55
"""Needed for anything to be recalled: by how much more of the query the lost passages have than those in the prompt, times the
standard deviations by which the best lies above the mean. Who asks nothing, or of what is new, mostly needs nothing; a plain
question shares its few words with anything, so as much of a message as asks is taken off the bar.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """Terms with their weights; empty: nothing is looked for."""

    terms: Mapping[str, float]
    bar: float = _BAR
    """As `_BAR`; who searches gets the best that there is."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the passages of a conversation for a query, in the order of the conversation."""

    query: Query
    scores: Sequence[float]
    covers: Sequence[float]
    """Share of the weight of all of the query's terms that each passage itself has."""
    words: Sequence[int]
    """The terms of the question itself that each passage has, a bit for each."""
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
    later: bool = False
    """Whether it may put something else in the place of another one."""
    behind: str = ""
    """Text of another one, without which it does not come."""


def query_of(messages: Sequence[Message], newest: int) -> Query:
    """Derive the query of the turn that begins with the user message at `newest`, and with those right before it."""
    run = takewhile(lambda each: each.get("role") == "user", reversed(messages[max(0, newest - _RUN) : newest + 1]))
    said: list[str] = []
    for each in map(authored_text, run):
        said.append(f"{each[:_LONGEST]}\n{each[_LONGEST:][-_LONGEST:]}")
        if asked(said[-1]):
            break  # what was said before a question is no part of it
    text = "\n".join(said)
    weights, others = _weighted(asked(text)), _weighted(text)
    share = min(_OTHER_TEXT, 2 * len(weights) / len(others)) if weights else 1.0
    bar = _BAR * (1 - len(weights) / len(others)) if len(others) > 1 else _BAR
    # The first terms are those that count, each with the first weight that it got.
    return Query(weights | {term: weight * share for term, weight in others.items()} | weights, bar)


def search_query(text: str) -> Query:
    """Derive the query from the words that a model searches for."""
    return Query(_weighted(text), bar=-inf)


def asks_the_same(message: Message, query: Query) -> bool:
    """Return whether a user's message asks for at least half of what the query is about."""
    if message.get("role") != "user" or not asked(text := authored_text(message)[-2 * _LONGEST :]):
        return False
    having = _weighted(text)
    shared = sum(weight for term, weight in query.terms.items() if term in having)
    return 2 * shared >= sum(query.terms.values())


def _weighted(text: str) -> dict[str, float]:
    return {term: _NAMED_DAY if term.startswith(DAY) else 1.0 for term in terms_and_days(text)}


def rank(passages: Sequence[MessagePassages], query: Query, near: Sequence[float] | None = None) -> Ranking:
    """Rank the passages of each message by how well they fit a query; `near` as in `Ranking`."""
    days: list[date | None] = []
    for each in passages:
        days.append(each.day or (days[-1] if days else None))
    places = [(index, number) for index, each in enumerate(passages) for number in range(len(each.spans))]
    lengths = [length for each in passages for length in each.lengths]
    starts = [0, *accumulate(len(each.spans) for each in passages)]
    scores, covers, words, total = [0.0] * len(places), [0.0] * len(places), [0] * len(places), 0.0
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    terms_of = [each.places for each in passages]
    for bit, (term, weight) in enumerate(islice(query.terms.items(), _MOST_TERMS)):
        # Asked of every message for every term: a look without a call takes half the time.
        having = [(start, terms[term]) for start, terms in zip(starts, terms_of, strict=False) if term in terms]
        found = {start + number: count for start, where in having for number, count in where}
        if term.startswith(DAY):  # a message's day is a term of all of its passages
            written = (at for at, day in enumerate(days) if day and day_term(day) == term)
            found |= {place: 1 for at in written for place in range(starts[at], starts[at + 1])}
        idf = weight * log(1 + (len(places) - len(found) + 0.5) / (len(found) + 0.5))
        total += idf  # also of what nobody has ever said
        for at, count in found.items():
            norm = _K1 * (1 - _B + _B * lengths[at] / mean)
            scores[at] += idf * count * (_K1 + 1) / (count + norm)
            covers[at] += idf
            words[at] |= (weight >= 1) << bit
    own, said = [*scores], [*words]
    for at, before in (
        (starts[n], slice(starts[max(0, n - _BACK)], starts[n])) for n, each in enumerate(passages) if each.brief
    ):
        scores[at] = max(scores[at], _OF_BEFORE * max(own[before], default=0.0))
        words[at] = reduce(or_, said[before], words[at])
    covers = [each / (total or 1.0) for each in covers]
    # A piece of a long message counts as part of it, unless it answers the query by itself.
    scores = [
        score / len(passages[index].spans) ** (1 - cover)
        for score, cover, (index, _) in zip(_with_context(scores), covers, places, strict=True)
    ]
    return Ranking(query, scores, covers, words, places, days, near)


def _with_context(scores: Sequence[float]) -> list[float]:
    last, total = len(scores), [0.0, *accumulate(scores)]
    # Sums of all before the end and before the beginning of what is around each: without a branch, for this is what takes long.
    upto = (total[_REACH + 1 :] + [total[-1]] * _REACH)[:last]
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
    order = outstanding(ranking, lost)
    if ranking.near is not None:
        order = _fused((order, outstanding(_by_nearness(ranking, ranking.near), lost)), ranking.near)
    statements = _Statements(messages, passages, ranking, lost)
    chosen: dict[str, Passage] = {}
    words = 0
    for at in order:
        weak = ranking.near is None and ranking.scores[at] < _SHARE_OF_OTHERS * ranking.scores[order[0]]
        if (weak and not ranking.words[at] & ~words) or statements.is_replaced(at, in_prompt):
            continue
        behind = ""
        for place in statements.with_later(at):
            start, end, text = statements.span(*place)
            tokens = AROUND + cost(text)
            if tokens > room and not chosen:
                asked, whole = ranking.query.terms.keys(), text
                text = max(sentences(whole, longest=len(text)), key=lambda each: len(asked & terms(each)), default=text)
                start += whole.find(text)
                end, tokens = start + len(text), AROUND + cost(text)
            if lost(place[0]) and in_prompt(text):
                continue
            if text not in chosen:
                if tokens > room:
                    break  # what is out of date never comes alone
                words |= ranking.words[at]
                room -= tokens
                chosen[text] = Passage(
                    place[0], start, end, text, ranking.days[place[0]], tokens, place != ranking.places[at], behind
                )
            behind = text
    return [*chosen.values()]


@dataclass(frozen=True)
class _Statements:
    """Passages of a conversation, each with what the same speaker said of the same things later."""

    messages: Sequence[Message]
    passages: Sequence[MessagePassages]
    ranking: Ranking
    lost: Callable[[int], bool]

    @cached_property
    def used(self) -> dict[str, list[int]]:
        """For each word of the user's short messages those that have it."""
        found = defaultdict[str, list[int]](list)
        for index, each in enumerate(self.passages):
            for term in each.places if self.messages[index].get("role") == "user" and len(each.spans) == 1 else ():
                found[term].append(index)
        return found

    def span(self, index: int, number: int) -> tuple[int, int, str]:
        """Return where a passage begins and ends in its message, and its text."""
        start, end = self.passages[index].spans[number]
        return start, end, spoken_text(self.messages[index])[start:end]

    def is_replaced(self, at: int, in_prompt: Callable[[str], bool]) -> bool:
        """Return whether something that stands in the prompt was put in the place of a statement."""
        index, number = self.ranking.places[at]
        terms = {term for term, where in self.passages[index].places.items() if number in dict(where)}
        return any(
            len(terms & self.passages[other[0]].places.keys()) > _SAME * len(terms)
            and (not self.lost(other[0]) or in_prompt(self.span(*other)[2]))
            for other in self._later(at)
        )

    def with_later(self, at: int) -> list[tuple[int, int]]:
        """Return the place of a statement, behind that of the newest lost one with all of its words of the question.

        One in the prompt counts, too, where no passage has more of the question: what holds has to stand last.

        Before that of one with the rarest word that the user has in few messages: it may say something else, but mostly
        it does not.
        """
        by, place = self.ranking, self.ranking.places[at]
        if self.messages[place[0]].get("role") == "assistant":
            return [place]
        best = by.words[at] == max(by.words)
        later = self._later(at)
        found = [each for each in later if (best or self.lost(each[0])) and not self._follows(each[0], at)][-1:]
        newest = (found or [place])[0][0]
        brief = [each for each in later if each[0] > newest and self._follows(each[0], at) and self.lost(each[0])]
        uses = (self.used.get(term, []) for term in self.passages[newest].places)
        linked = ((-len(use), index) for use in uses if len(use) <= _FEW for index in use if index > newest)
        alike = [(i, 0) for _, i in sorted(linked) if self.lost(i) and self._value(i) == self._value(newest)]
        return [*found, place, *brief[:_FOLLOWING], *alike[-1:]]

    def _follows(self, index: int, at: int) -> bool:
        """Return whether a brief message has the words of a passage only from what was said before it."""
        wanted = {term for term, weight in self.ranking.query.terms.items() if weight >= 1}
        here = wanted & self.passages[self.ranking.places[at][0]].places.keys()
        return self.passages[index].brief and not here <= self.passages[index].places.keys()

    def _value(self, index: int) -> tuple[bool, bool]:
        """Return whether a message tells a day, and whether a number: a value is replaced by one of its kind."""
        terms = "\n".join(self.passages[index].places)
        return DAY in terms, any(map(str.isdecimal, terms))

    def _later(self, at: int) -> list[tuple[int, int]]:
        """List the later passages of the same speaker that have all words of the query that one has, and fit as well."""
        by, (index, _) = self.ranking, self.ranking.places[at]
        words, least, role = by.words[at], _SHARE_OF_OTHERS * by.scores[at], self.messages[index].get("role")
        return [
            place
            for place, having, score in zip(by.places, by.words, by.scores, strict=True)
            if having & words == words != 0 and score >= least and place[0] > index
            if self.messages[place[0]].get("role") == role
        ]


def within(passages: Sequence[Passage], room: float) -> list[Passage]:
    """Select passages, best first, that fit into `room` tokens together."""
    chosen: list[Passage] = []
    for passage in passages:
        if passage.tokens <= room and passage.behind in ("", *(each.text for each in chosen)):
            room -= passage.tokens
            chosen.append(passage)
    return chosen


def outstanding(ranking: Ranking, lost: Callable[[int], bool]) -> list[int]:
    """Places of the passages that stand out, best first; none if not even the best one does."""
    scores = ranking.scores
    gone = [lost(index) for index, _ in ranking.places]
    best = max(compress(scores, gone), default=0.0)
    if not best:
        return []
    mean = sum(scores) / len(scores)
    # This is done for every passage of a long conversation: loops that run in C take a third.
    deviation = sqrt(max(0.0, sum(map(mul, scores, scores)) / len(scores) - mean * mean))
    more = max(compress(ranking.covers, gone)) - max(compress(ranking.covers, map(not_, gone)), default=0.0)
    if more * (best - mean) < ranking.query.bar * deviation:
        return []
    found = (at for at, score in enumerate(scores) if gone[at] and score >= best * _SHARE_OF_BEST)
    return sorted(found, key=lambda at: (-scores[at], -at))


def _by_nearness(ranking: Ranking, near: Sequence[float]) -> Ranking:
    """Score the same passages by how near they are; one without a vector comes last, and does not pull the mean down."""
    least = min(filter(None, near), default=0.0)
    scores = [max(0.0, score - least) for score in near]
    best = max(scores) or 1.0
    return replace(ranking, scores=scores, covers=[score / best for score in scores])


def _fused(orders: Sequence[Sequence[int]], near: Sequence[float]) -> list[int]:
    """Join orders of places, each with the best first, into one; those without a vector count twice where they stand."""
    scores = defaultdict[int, float](float)
    for order in orders:
        for position, at in enumerate(order):
            scores[at] += (1 if near[at] else 2) / (_RANKED + position)
    return sorted(scores, key=scores.__getitem__, reverse=True)
