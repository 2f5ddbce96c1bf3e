"""Passages of a message: all of it if it is short, else pieces, with the positions of each term."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from proxy.core.history.marks import is_instruction, is_summary
from proxy.core.history.turns import calls_of
from proxy.core.request import SYSTEM_ROLES, Message, text_of
from proxy.recall.dates import days_in, month_day, written_on
from proxy.recall.words import folded, terms

UNSPLIT = 600
"""Units of a message up to which it is one passage: about 150 tokens of English."""
PIECE = 420
"""Units of a piece of a longer one."""
_WIDE = 3
"""Units of a character beyond Latin letters, which takes a token or so where a Latin one takes a quarter."""
_LAST_LATIN = "\u024f"
_ENDS = (re.compile(r"\n"), re.compile(r"[.!?](?=\s)|[。！？]"), re.compile(r"\s"))  # noqa: RUF001 - Chinese ends of sentences
_BLANK = re.compile(r"\s*")
_LONGEST = 200_000
"""Characters of one message that are looked through; what a tool prints beyond that is found by calling it again."""
DAY = "day:"
"""Begins the term for a day of the year, as no word does."""


@dataclass(frozen=True, slots=True)
class MessagePassages:
    """Spans and terms of a message. The text itself is not stored: it is in the request, each time."""

    spans: tuple[tuple[int, int], ...]
    """Where its passages stand in its text, in order."""
    lengths: tuple[int, ...]
    """How many terms each has, repetitions counted."""
    places: Mapping[str, tuple[tuple[int, int], ...]]
    """For each term the passages that have it, and how often."""
    day: date | None
    """On which it was written, if it tells."""

    def only(self, of: Callable[[int, int], bool]) -> MessagePassages:
        """The same with those passages alone for whose place this is true."""
        chosen = [number for number, span in enumerate(self.spans) if of(*span)]
        new = {number: at for at, number in enumerate(chosen)}
        places = {
            term: tuple((new[number], count) for number, count in where if number in new)
            for term, where in self.places.items()
        }
        return MessagePassages(
            tuple(self.spans[number] for number in chosen),
            tuple(self.lengths[number] for number in chosen),
            {term: where for term, where in places.items() if where},
            self.day,
        )


NO_PASSAGES = MessagePassages((), (), {}, None)


def passages_of(message: Message) -> MessagePassages:
    """The passages of a message; none of what the system says, nor of what Spillway wrote."""
    day = written_on(message)
    if message.get("role") in SYSTEM_ROLES or is_summary(message) or is_instruction(message):
        return MessagePassages((), (), {}, day)
    text = spoken_text(message)
    spans = tuple(spans_of(text))
    lengths: list[int] = []
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (start, end) in enumerate(spans):
        found = _terms(text[start:end])
        lengths.append(found.total())
        for term, count in found.items():
            places.setdefault(term, []).append((number, count))
    return MessagePassages(spans, tuple(lengths), {term: _one(tuple(where)) for term, where in places.items()}, day)


@lru_cache(maxsize=4096)
def _one(places: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same places as one object, for nearly all terms of short messages have the same."""
    return places


def spoken_text(message: Message) -> str:
    """The text in which the passages of a message lie: what it says, and the calls that it makes, a line each."""
    text = text_of(message)[:_LONGEST]
    functions = [function for call in calls_of(message) if isinstance(function := call.get("function"), dict)]
    lines = [f"{function.get('name')}: {function.get('arguments')}"[:_LONGEST] for function in functions]
    return "\n".join(filter(None, (text, *lines))) if lines else text


def term_of(day: date) -> str:
    """The term for a day."""
    return DAY + month_day(day)


def spans_of(text: str) -> Iterator[tuple[int, int]]:
    """Cut a text so that no piece is much longer than `PIECE` units: at lines, else sentences, else words.

    White space around a piece is no part of it.
    """
    end = len(text.rstrip())
    at = _skip_blank(text, 0)
    if at < end and end - at <= UNSPLIT and _units(text, at, end) <= UNSPLIT:
        yield at, end
        return
    while at < end:
        cut = _cut(text, at, end)
        yield at, at + len(text[at:cut].rstrip())
        at = _skip_blank(text, cut)


def _cut(text: str, at: int, end: int) -> int:
    """The end of the piece that begins at `at`, behind the last good place in its second half."""
    cut, units = at, 0
    while cut < end and units < PIECE:
        units += 1 if text[cut] <= _LAST_LATIN else _WIDE
        cut += 1
    if end - cut < PIECE and _units(text, cut, end) < PIECE // 4:
        return end
    half = at + (cut - at) // 2
    for mark in _ENDS:
        places = [found.end() for found in mark.finditer(text, half, cut)]
        if places:
            return places[-1]
    return cut


def _units(text: str, start: int, end: int) -> int:
    return sum(1 if char <= _LAST_LATIN else _WIDE for char in text[start:end])


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank is not None else at


def _terms(piece: str) -> Counter[str]:
    found = Counter(terms(piece))
    found.update(DAY + day for _, day in days_in(folded(piece)))
    return found
