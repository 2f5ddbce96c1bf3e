"""What every form of a written call is made of, and what its reading returns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from proxy.emulation.reader import SPACE, Reader, Step

Span = tuple[int, int]
"""Characters of the text of a form, from where its opening begins."""


LONGEST_WORD = 256
"""Letters of the longest name that is read."""


class Words:
    """A set of words that is asked, letter by letter, whether a text may still become one of them.

    Words that are too long to be read are left out. Memory is that of the words alone.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(word for word in words if len(word) <= LONGEST_WORD)
        self._sorted = sorted(self._words)

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def may_become(self, text: str) -> bool:
        """Whether a word begins so."""
        # Words that begin with a text follow it directly in this order.
        at = bisect_left(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


@dataclass(frozen=True, slots=True)
class Written:
    """One call as it was written."""

    name: str
    arguments: Span | None = None
    """Their JSON; None if none were given."""
    parameters: tuple[tuple[Span, Span], ...] | None = None
    """In forms that write each parameter on its own: name and value, which is bare text."""
    closed: bool = True
    """Whether all of its brackets and tags that hold data were closed."""
    repairs: tuple[str, ...] = ()
    broken: bool = False
    """Whether it is not built like JSON."""
    misplaced: bool = False
    """Whether it has no arguments, and something that may have been meant as such."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a form turned out to hold."""

    calls: tuple[Written, ...]
    """None if the text ended while it might still have become a call."""
    rest: str = ""
    """Text at the end of what was consumed that does not belong to the form."""


Read = Callable[[Reader, Words], Step[Found | None]]
"""Reads on behind an opening, given the names of the tools; None as soon as it can't be a call any longer."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which models write calls."""

    name: str
    openings: tuple[str, ...]
    """Texts that it may begin with; one may begin like another, but in none its first character comes again."""
    read: Read
    at_line_start: bool = False
    """Whether it counts only there, behind at most three blanks."""


def rest_unless_closed(reader: Reader, closing: str, end: int) -> Step[str]:
    """Consume white space and a closing mark; if it is not that mark, everything consumed from `end` on.

    Models leave it out at the end of an answer, so a mark that the end of the text cut short counts.
    """
    yield from reader.run(SPACE)
    before = reader.offset
    if (yield from reader.literal(closing)):
        return ""
    if not (yield from reader.peek()) and reader.offset > before:
        return ""
    return reader.kept[end:]
