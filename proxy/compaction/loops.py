"""A model that says the same over and over, noticed while it does."""

from __future__ import annotations

import re
from collections import Counter

from proxy.core.history.sentences import sentences
from proxy.recall.words import UNSPACED, folded

_UNIT = re.compile(rf"(?P<marker>\d{{1,3}}[.)](?=\s))|[{UNSPACED}]|[^\W{UNSPACED}]{{1,64}}")
"""A word, or a character where words are not spaced; the number of an item says nothing."""
_SIZE = 8
"""Units in a row that are looked for among those before."""
_LOOP = 40.0
"""Words in a row that were all said before in the same order, from which on it is a loop."""
_OF_CHARACTER = 0.6
"""Of a word, for a character of a script without spaces."""
_BLANK = 400
"""Characters without a single word in them."""
_TIMES, _SHARE = 3, 0.5
_LEAST_UNITS, _LEAST_DIFFERENT = 24, 0.2


class LoopWatch:
    """Reads a text as it grows, in time linear in its length."""

    def __init__(self) -> None:
        self._rest = ""
        self._last: list[str] = []
        self._seen: set[tuple[str, ...]] = set()
        self._run = 0.0
        self._blank = 0
        self.looped = False
        """Whether it went round in circles; that stays so."""

    def feed(self, text: str) -> bool:
        """More of the text; whether it loops."""
        text = self._rest + text
        # Its last word may go on, and with it what stands before it.
        end = len(text) - 1
        while end > 0 and end > len(text) - 80 and (text[end].isalnum() or text[end] in "_.)"):
            end -= 1
        self._rest = text[end:] if end > 0 else text
        self._read(text[:end] if end > 0 else "")
        return self.looped

    def end(self) -> bool:
        """The text is complete; whether it looped."""
        self._read(self._rest)
        self._rest = ""
        return self.looped

    def _read(self, text: str) -> None:
        after = 0
        for unit in _UNIT.finditer(folded(text)):
            if unit["marker"] is None:
                self._take(unit.group())
                after = unit.end()
        self._blank = (0 if after else self._blank) + len(text) - after
        self.looped |= self._blank >= _BLANK

    def _take(self, unit: str) -> None:
        self._last = [*self._last[1 - _SIZE :], unit]
        if len(self._last) < _SIZE:
            return
        gram = tuple(self._last)
        if gram in self._seen:
            self._run += _OF_CHARACTER if re.match(f"[{UNSPACED}]", unit) else 1.0
            self.looped |= self._run >= _LOOP
        else:
            self._seen.add(gram)
            self._run = 0.0


def loops(text: str) -> bool:
    """Return whether a whole text says the same over and over: in its course, or taken together if it is short."""
    watch = LoopWatch()
    watch.feed(text)
    return watch.end() or _says_one_thing(text)


def _says_one_thing(text: str) -> bool:
    units = [unit.group() for unit in _UNIT.finditer(folded(text)) if unit["marker"] is None]
    if len(units) >= _LEAST_UNITS and len(set(units)) < _LEAST_DIFFERENT * min(len(units), 10 * _LEAST_UNITS):
        return True
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences(folded(text), longest=1000):
        counts[tuple(u.group() for u in _UNIT.finditer(sentence) if u["marker"] is None)] += 1
    again = sum(len(sentence) * count for sentence, count in counts.items() if count >= _TIMES and len(sentence) > 2)
    return again > _SHARE * len(units)
