"""Queries to an embedding model, and the similarity of each passage to the newest turn by its vectors.

Words find what is asked for in the words in which it was said, vectors what was said in others. Each tells by itself
what stands out; what either finds is put in order by reciprocal ranks (Cormack, Clarke and Büttcher, 2009).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from operator import mul
from typing import TypeAlias

from proxy.core.history.embedded import authored_text
from proxy.core.request import Message, text_of
from proxy.recall.ranking import Ranking
from proxy.recall.words import terms

Embedding: TypeAlias = "array[float]"
"""Of length 1, in 32 bits; empty where the model gives none."""

_PREFIXES = (
    (re.compile("nomic-embed-text"), "search_query: ", "search_document: "),
    (re.compile(r"(?<![a-z0-9])e5(?![a-z0-9])"), "query: ", "passage: "),
    (
        re.compile(r"qwen3.?embedding"),
        "Instruct: Given a message in a conversation, retrieve earlier passages of it that it refers to\nQuery:",
        "",
    ),
)
"""What models were trained to read in front of a query and of a passage, by their cards."""
_FEW = 3
"""Terms below which a message is understood only with the one before it."""
_LONGEST = 1_000
"""Characters of a query, at its end: models read 512 tokens, some of them."""
_RANKED = 60
"""The constant of reciprocal ranks: the first few count alike."""


def texts_for(model: str, query: str, passages: Sequence[str]) -> tuple[str, list[str]]:
    """A query and passages as this embedding model was trained to read them."""
    found = next((each for each in _PREFIXES if each[0].search(model.lower())), None)
    if found is None:
        return query, list(passages)
    return found[1] + query, [found[2] + passage for passage in passages]


def query_text(messages: Sequence[Message], newest: int) -> str:
    """The text that tells what the turn is about that begins with the user message at `newest`; empty: nothing does."""
    text = authored_text(messages[newest])[-_LONGEST:].strip()
    if text and newest and len(terms(text)) < _FEW:
        text = f"{text_of(messages[newest - 1])[-_LONGEST:]}\n{text}"[-_LONGEST:]
    return text


def vector_of(values: Sequence[float]) -> Embedding:
    """A vector of length 1 in the direction of these values; empty if they have none.

    Raises:
        TypeError, ValueError, OverflowError: these are no numbers.
    """
    length = sqrt(sum(map(mul, values, values)))
    return array("f", (value / length for value in values) if 0 < length < float("inf") else ())


def nearness(query: Embedding, passages: Sequence[Embedding]) -> list[float]:
    """Return the similarity of each passage to a query, from 0 to 2; a vector of another size, or none, scores 0."""
    size = len(query)
    return [1 + sum(map(mul, query, passage)) if len(passage) == size else 0.0 for passage in passages]


def by_nearness(ranking: Ranking, near: Sequence[float]) -> Ranking:
    """The same passages, ranked by how near they are.

    What is without a vector is nearer to nothing than all others; it does not pull the mean down.
    """
    least = min((score for score in near if score), default=0.0)
    return replace(ranking, scores=[max(0.0, score - least) for score in near], core=[0.0] * len(ranking.scores))


def fused(orders: Sequence[Sequence[int]]) -> list[int]:
    """One order of all that several orders have, each with the best first."""
    scores: dict[int, float] = {}
    for order in orders:
        for rank, at in enumerate(order):
            scores[at] = scores.get(at, 0.0) + 1 / (_RANKED + rank)
    return sorted(scores, key=lambda at: -scores[at])
