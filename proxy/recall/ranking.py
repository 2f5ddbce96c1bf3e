"""Recall by words and meaning: the query of a turn, the ranking of passages for it, and the choice of those worth their tokens.

Ranking is BM25 over one conversation (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, section 3), except that
the neighbours of a passage count too. Words find passages with the words of the question, and vectors find those with other words.
Each decides by itself which passages stand out; reciprocal ranks (Cormack, Clarke and Büttcher, 2009) join the two orders.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, reduce
from itertools import accumulate, compress, islice, takewhile
from math import inf, log, sqrt
from operator import mul, not_, or_

from proxy.core.history.embedded import authored_text
from proxy.core.history.sentences import sentences
from proxy.core.request import Message, text_of
from proxy.recall.passages import DAY, MessagePassages, asked, day_term, spoken_text, terms_and_days
from proxy.recall.words import terms

# "What did we talk about on 2 May?" has more common words than days, and passages in the prompt had as many of these,
# so nothing was recalled. With this weight, 85 instead of 77 % of the evidence in Chinese dialogues (4,096 tokens);
# English ones stayed the same.
_NAMED_DAY = 6.0
"""Weight of a named day: nobody names one by chance."""
_MOST_TERMS = 48
_LONGEST = 2_000
"""Characters at either end of a message that show what it is about; anything between is assumed to be pasted."""
_RUN = 2
"""Most user messages before the newest, with no answer between, that belong to the query as long as none asks anything: a question
and a text about it may be separate messages.
"""
# Agents send each task between the same instructions, which recalled as many steps of other tasks as there was room for:
# 1,100 tokens in a window of 4,096 and 4,800 in 16,384.
_TEMPLATE = 4
"""Sentences shared with earlier user messages from which they count as a program's template, whose words are no query."""
_OTHER_TEXT = 0.5
"""Weight of a message's text besides its question. It is lowered for a long text, so that all of it together weighs no more than twice
the question, which it must not drown.
"""
_K1, _B = 1.2, 0.75
"""Parameters of BM25, at their usual values."""
_BEFORE, _AFTER = 0.5, 0.3
"""Share of its score that a passage gives to the next one and to the previous one: a question finds its answer."""
_OF_BEFORE, _BACK = 0.4, 4
"""A brief user message scores at least this share of the best score in this many messages before it, and gets the words of all of
them: it refers to what was said there, and may change it.
"""
_AROUND, _REACH = 1.0, 4
"""Weight of the mean score of this many passages on either side, for the topic there."""
AROUND = 8.0
"""Tokens that a passage takes besides its text."""
_RANKED = 60
"""Constant of reciprocal ranks: the larger it is, the less the first ranks differ."""
_SHARE_OF_BEST, _SHARE_OF_OTHERS = 0.2, 0.3
"""Share of the best passage's score that a passage needs: with words of the query that no passage chosen before has, and without."""
_SAME = 0.5
"""Share of a statement's terms that a later statement must exceed to count as its replacement."""
_FEW = 3
"""Most user messages with a word for which a later one of them may replace an earlier one."""
_FOLLOWING = 4
"""Most brief messages recalled together with the statement before them, which they may change."""
# Measured with chats that nothing was tuned on. At 0.5, evidence found rose (between friends from 63 to 76 %), but so
# did blocks on turns that need none (with other real people from 14 to 19 %); 0.55 is between the two.
_BAR = 0.55
"""Threshold for recalling anything. The lost passages' lead over those in the prompt, as a share of the query, times the number of
standard deviations by which the best passage is above the mean, must reach it. A message that asks nothing, or asks for something
new, mostly needs nothing. A plain question shares its few words with many passages, so the bar is lowered by the share of the message
that asks.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """Terms with their weights; if there are none, nothing is searched for."""

    terms: Mapping[str, float]
    bar: float = _BAR
    """Threshold, as `_BAR`; a search by the model has none, and gets the best passages there are."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the passages of a conversation for a query, in the order of the conversation."""

    query: Query
    scores: Sequence[float]
    covers: Sequence[float]
    """Share of the query's total weight found in each passage itself, without its neighbours."""
    words: Sequence[int]
    """Terms of the question itself that each passage has, one bit each; a brief message also has those of the messages before it."""
    said: Sequence[int]
    """The same without what is only in the messages before."""
    places: Sequence[tuple[int, int]]
    """Index of each passage's message, and the passage's number there."""
    days: Sequence[date | None]
    """Day of writing of each message, or of the last message before it that gives one."""
    near: Sequence[float] | None = None
    """Similarity of each passage to the query by its vector, 0 for a passage without one; None without vectors."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A recalled passage: `start` and `end` are its place in the text of the message at `index`."""

    index: int
    start: int
    end: int
    text: str
    day: date | None
    tokens: float
    """Tokens, including those around its text in the block."""
    later: bool = False
    """Whether it was chosen because it may replace an earlier passage."""
    behind: str = ""
    """Text of the passage that has to be recalled before this one; empty if it can be recalled alone."""


def query_of(messages: Sequence[Message], newest: int) -> Query:
    """Derive the query of the turn that begins with the user message at `newest`, including user messages right before it."""
    run = takewhile(lambda each: each.get("role") == "user", reversed(messages[max(0, newest - _RUN) : newest + 1]))
    texts: list[str] = []
    for each in map(authored_text, run):
        texts.append(f"{each[:_LONGEST]}\n{each[_LONGEST:][-_LONGEST:]}")
        if asked(texts[-1]):
            break  # text before a question does not belong to it
    text, template = _without_template("\n".join(texts), messages[: newest + 1 - len(texts)])
    weights, others = ({t: w for t, w in _weighted(each).items() if t not in template} for each in (asked(text), text))
    share = min(_OTHER_TEXT, 2 * len(weights) / len(others)) if weights else 1.0
    bar = _BAR * (1 - len(weights) / len(others)) if len(others) > 1 else _BAR
    # The question's terms come first, since only the first `_MOST_TERMS` count, and keep their own weights.
    return Query(weights | {term: weight * share for term, weight in others.items()} | weights, bar)


def _without_template(text: str, earlier: Sequence[Message]) -> tuple[str, set[str]]:
    """Return what a program's template around the user's task leaves of a text, and the terms that its tasks share."""
    every = [*sentences(text, longest=_LONGEST)]
    if len(every) <= _TEMPLATE:
        return text, set()
    before = [text_of(each) for each in earlier if each.get("role") == "user"]
    said = "\n".join(before)
    shared = [each for each in every if each in said]
    if not _TEMPLATE <= len(shared) < len(every):
        return text, set()
    messages = ("\n".join(shared), *(each[: 2 * _LONGEST] for each in before))
    times = Counter(term for each in messages for term in {*terms_and_days(each)})
    return "\n".join(each for each in every if each not in shared), {term for term in times if times[term] > 1}


def search_query(text: str) -> Query:
    """Derive a query without a threshold from the words that a model searches for."""
    return Query(_weighted(text), bar=-inf)


def asks_the_same(message: Message, query: Query) -> bool:
    """Return whether a user's message is a question with at least half of the query's weight."""
    if message.get("role") != "user" or not asked(text := authored_text(message)[-2 * _LONGEST :]):
        return False
    having = _weighted(text)
    shared = sum(weight for term, weight in query.terms.items() if term in having)
    return 2 * shared >= sum(query.terms.values())


def _weighted(text: str) -> dict[str, float]:
    return {term: _NAMED_DAY if term.startswith(DAY) else 1.0 for term in terms_and_days(text)}


def rank(passages: Sequence[MessagePassages], query: Query, near: Sequence[float] | None = None) -> Ranking:
    """Score the passages of each message for a query; `near` as in `Ranking`."""
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
        # This runs for every message and term: a lookup without a function call takes half the time.
        having = [(start, terms[term]) for start, terms in zip(starts, terms_of, strict=False) if term in terms]
        found = {start + number: count for start, where in having for number, count in where}
        if term.startswith(DAY):  # a message's day is a term of all of its passages
            written = (at for at, day in enumerate(days) if day and day_term(day) == term)
            found |= {place: 1 for at in written for place in range(starts[at], starts[at + 1])}
        idf = weight * log(1 + (len(places) - len(found) + 0.5) / (len(found) + 0.5))
        total += idf  # terms found nowhere count too, so that no passage covers the whole query without them
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
    return Ranking(query, scores, covers, words, said, places, days, near)


def _with_context(scores: Sequence[float]) -> list[float]:
    last, total = len(scores), [0.0, *accumulate(scores)]
    # Cumulative sums up to the end and to the start of each passage's surroundings, without a branch: this is the slow part.
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
    """Choose the passages that a turn needs from these messages, best first, within `room` tokens; usually none.

    `passages` are those of each message, and `ranking` has their scores. Only passages of `lost` messages are recalled,
    unless their text is `in_prompt` anyway. `cost` returns the tokens of a text.
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
        required = ""
        for place in statements.with_later(at):
            start, end, text = statements.span(*place)
            tokens = AROUND + cost(text)
            if tokens > room and not chosen:
                wanted, full = ranking.query.terms.keys(), text
                text = max(sentences(full, longest=len(text)), key=lambda each: len(wanted & terms(each)), default=text)
                start += full.find(text)
                end, tokens = start + len(text), AROUND + cost(text)
            if lost(place[0]) and in_prompt(text):
                continue
            if text not in chosen:
                if tokens > room:
                    break  # never recall an outdated statement without the newer one, which comes first
                words |= ranking.words[at]
                room -= tokens
                chosen[text] = Passage(
                    place[0], start, end, text, ranking.days[place[0]], tokens, place != ranking.places[at], required
                )
            required = text
    return [*chosen.values()]


@dataclass(frozen=True)
class _Statements:
    """Passages of a conversation, and the later passages of the same speaker on the same subject."""

    messages: Sequence[Message]
    passages: Sequence[MessagePassages]
    ranking: Ranking
    lost: Callable[[int], bool]

    @cached_property
    def used(self) -> dict[str, list[int]]:
        """Indexes of the user's short messages by the terms in them."""
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
        """Return whether a later statement that is in the prompt replaces this one."""
        index, number = self.ranking.places[at]
        terms = {term for term, where in self.passages[index].places.items() if number in dict(where)}
        return any(
            len(terms & self.passages[other[0]].places.keys()) > _SAME * len(terms)
            and (not self.lost(other[0]) or in_prompt(self.span(*other)[2]))
            for other in self._later(at)
        )

    def with_later(self, at: int) -> list[tuple[int, int]]:
        """Return the place of a statement with those of later ones that may replace it, in the order of choice.

        First comes the newest lost statement with all of this one's words of the question; one in the prompt counts too
        if no passage has more of the question, because the valid statement has to come last. Then comes the statement
        itself, then brief messages that refer to it. Last comes a lost message that shares a rare word with it: it may
        change the statement, but usually does not.
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
        """Return whether a brief message got the passage's words of the query only from the messages before it."""
        wanted = {term for term, weight in self.ranking.query.terms.items() if weight >= 1}
        here = wanted & self.passages[self.ranking.places[at][0]].places.keys()
        return self.passages[index].brief and not here <= self.passages[index].places.keys()

    def _value(self, index: int) -> tuple[bool, bool]:
        """Return whether a message has a day, and whether a number: a value is replaced only by one of its kind."""
        terms = "\n".join(self.passages[index].places)
        return DAY in terms, any(map(str.isdecimal, terms))

    def _later(self, at: int) -> list[tuple[int, int]]:
        """List later passages of the same speaker with the passage's words of the query, in the prompt by themselves, and a like score."""
        by, (index, _) = self.ranking, self.ranking.places[at]
        words, least, role = by.words[at], _SHARE_OF_OTHERS * by.scores[at], self.messages[index].get("role")
        return [
            place
            for place, having, without_before, score in zip(by.places, by.words, by.said, by.scores, strict=True)
            if having & words == words != 0 and score >= least and place[0] > index
            if self.messages[place[0]].get("role") == role and (without_before & words == words or self.lost(place[0]))
        ]


def within(passages: Sequence[Passage], room: float) -> list[Passage]:
    """Select passages, best first, that fit into `room` tokens together; none without the passage that it depends on."""
    chosen: list[Passage] = []
    for passage in passages:
        if passage.tokens <= room and passage.behind in ("", *(each.text for each in chosen)):
            room -= passage.tokens
            chosen.append(passage)
    return chosen


def outstanding(ranking: Ranking, lost: Callable[[int], bool]) -> list[int]:
    """Return the numbers of the lost passages that stand out, best first; none if even the best one misses the bar."""
    scores = ranking.scores
    gone = [lost(index) for index, _ in ranking.places]
    best = max(compress(scores, gone), default=0.0)
    if not best:
        return []
    mean = sum(scores) / len(scores)
    # This covers every passage of a long conversation; loops that run in C take a third of the time.
    deviation = sqrt(max(0.0, sum(map(mul, scores, scores)) / len(scores) - mean * mean))
    more = max(compress(ranking.covers, gone)) - max(compress(ranking.covers, map(not_, gone)), default=0.0)
    if more * (best - mean) < ranking.query.bar * deviation:
        return []
    found = (at for at, score in enumerate(scores) if gone[at] and score >= best * _SHARE_OF_BEST)
    return sorted(found, key=lambda at: (-scores[at], -at))


def _by_nearness(ranking: Ranking, near: Sequence[float]) -> Ranking:
    """Score the same passages by similarity, less the lowest.

    A passage without a vector then comes last, and does not lower the mean.
    """
    least = min(filter(None, near), default=0.0)
    scores = [max(0.0, score - least) for score in near]
    best = max(scores) or 1.0
    return replace(ranking, scores=scores, covers=[score / best for score in scores])


def _fused(orders: Sequence[Sequence[int]], near: Sequence[float]) -> list[int]:
    """Join orders of passages, each with the best first, by reciprocal ranks; a passage without a vector counts twice in its order."""
    # All of them counted the same once; a single passage without a vector then turned vectors off for the whole
    # conversation.
    scores = defaultdict[int, float](float)
    for order in orders:
        for position, at in enumerate(order):
            scores[at] += (1 if near[at] else 2) / (_RANKED + position)
    return sorted(scores, key=scores.__getitem__, reverse=True)
