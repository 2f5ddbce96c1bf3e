"""Choice of the passages that are worth their tokens: the best few, and none where nothing stands out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import compress
from math import sqrt
from operator import mul, not_
from typing import TypeAlias

from proxy.core.request import Message
from proxy.recall.dense import by_nearness, fused
from proxy.recall.passages import MessagePassages, spoken_text
from proxy.recall.ranking import Ranking

TextCost: TypeAlias = Callable[[str], float]
"""Tokens of a text."""

AROUND = 8.0
"""Tokens that a passage takes besides its text."""
_ALL = 0.999
"""Share of the most that any passage has of what is asked for; sums of floats are not exact."""
_SHARE_OF_BEST = 0.2
"""Share of the best passage's score below which nothing is worth its tokens beside it."""
_MISSES = 8
"""Passages in a row that are too long for the room that is left, after which no more are tried."""


@dataclass(frozen=True, slots=True)
class _Bar:
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


_QUESTION = _Bar(best=3.0, ahead=0.7, least=1.0, roots=4.0)
_STATEMENT = _Bar(best=5.5, ahead=2.0, least=2.0, roots=2.0)
"""Who asks nothing mostly needs nothing."""
_SOUGHT = _Bar(best=0.0, ahead=-1e9, least=0.0, roots=1.0)
"""Who searches gets the best that there is."""


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


def choose(
    messages: Sequence[Message],
    passages: Sequence[MessagePassages],
    ranking: Ranking,
    *,
    lost: Callable[[int], bool],
    room: float,
    cost: TextCost,
    in_prompt: Callable[[str], bool],
) -> list[Passage]:
    """The passages of these messages that a turn needs, the best first, in `room` tokens; mostly none.

    `passages` are those of each message, and `ranking` how well that fits the turn. Only what is in messages that the prompt
    has `lost` is recalled, and of that no text which the prompt has all the same.
    """
    bar = _SOUGHT if ranking.sought else _QUESTION if ranking.asks else _STATEMENT
    order = _worth(ranking, bar, lost)
    if ranking.near is not None:
        order = fused((order, _worth(by_nearness(ranking, ranking.near), bar, lost)))
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


def _worth(ranking: Ranking, bar: _Bar, lost: Callable[[int], bool]) -> list[int]:
    """Places of the passages that stand out, best first; none if not even the best one does."""
    scores = ranking.scores
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
    """The best first; of those that have all that is asked for, none before a later one, which may correct it."""
    scores = {at: ranking.scores[at] for at in found}
    complete = _ALL * max(map(ranking.core.__getitem__, found), default=0.0)
    highest = 0.0
    for at in found if complete else ():
        if ranking.core[at] >= complete:
            scores[at] = highest = max(highest, scores[at])
    return sorted(found, key=lambda at: (-scores[at], -at))
