"""Recognising an answer that is told again: in nearly the same words, or its end once more behind words about it.

A server that ignores how it was asked to go on, or a template that closes the turn, has the model begin a new turn. Then it
repeats itself, seldom letter by letter.
"""

from __future__ import annotations

import re

from typing_extensions import override

from proxy.stream.thinking import Filter, after_thought

_LOOK = 96
"""Characters of a continuation that are looked at before it is believed to be one."""
_BEGINNING, _END = 800, 1000
"""Characters of an answer that are recognised when they come again."""
_SEARCHED = 4096
"""Characters of an answer in which what is recognised must stand only once."""
_OPENING = 100
"""Letters of an answer among which it is taken up where it is told again; what is like a later place of it, a refrain or
the mended form of what it showed, is no new beginning.
"""
_GRAM = 8
"""Letters and digits in a row by which texts are compared."""
_JUDGED = (32, 240)
"""How many of those, at least and at most, it takes to tell."""
_RISING, _SAME = 0.4, 0.5
"""Shares of them that the beginning of the answer has too: less is no suspicion, more is the same text."""
_ECHO = 40
"""Characters of the end of an answer that are no coincidence behind words about it."""
_PROBE = 32
"""Characters of the beginning of an answer that are no coincidence in the rest of it."""
_PREAMBLE = 200
_WORDS = 8
"""Letters that such words have at least; and words of the answer's own are none."""
_LEADS_IN = re.compile(r"(?:[:\n…]|\.\.\.)[\s\"'“„«>*`]*")
"""What stands between words about a text and the text."""


class RestartFilter(Filter):
    """Holds the beginning of a continuation back until it is known to be none of these.

    Repetitive texts can't be told apart from themselves: of what the answer says twice nothing is looked for.
    """

    def __init__(self, text: str) -> None:
        """`text` is the answer so far."""
        searched = text if len(text) <= 2 * _SEARCHED else text[:_SEARCHED] + text[-_SEARCHED:]
        self._searched = searched
        self._words = "".join(filter(str.isalpha, searched.casefold()))
        self._end = text[-_END:]
        answer = after_thought(text)
        beginning, searched_letters = _letters(answer[:_BEGINNING]), _letters(searched)
        self._own, self._first = _rare(beginning, searched_letters), _rare(beginning[:_OPENING], searched_letters)
        least, most = _JUDGED
        self._judged = max(least, min(most, int(0.8 * len(self._own))))
        if len(self._own) < least or _comes_again(text, len(text) - len(answer)):
            self._own = frozenset()
        super().__init__(is_open=bool(self._own) or len(text) >= _ECHO)

    @override
    def _judge(self, *, ended: bool) -> str:
        share, letters = self._similarity()
        echo = self._echo()
        if echo or ended:
            again = not echo and letters >= _JUDGED[0] and share > _SAME
            return self._restart() if again else self._release(echo or 0)
        doubtful = letters > 0 and (share >= _RISING or letters < _JUDGED[0] // 2)
        if letters >= self._judged:
            if share >= _SAME and echo is not None:
                return self._restart()
            doubtful = share >= _SAME
        return "" if doubtful or echo is None or len(self._held) < _LOOK else self._release(0)

    def _similarity(self) -> tuple[float, int]:
        """Return how much of what is held stands in the beginning of the answer, from where it is taken up, and out of how many."""
        grams = _grams(_letters(self._held[:_END]))
        start = next((at for at, gram in enumerate(grams[:_PREAMBLE]) if gram in self._first), None)
        if start is None:
            return 0.0, 0
        matches = [gram in self._own for gram in grams[start : start + self._judged]]
        return sum(matches) / len(matches), len(matches)

    def _echo(self) -> int | None:
        """Characters of a preamble and of the end of the answer behind it; 0: there is none, None: there may be one."""
        held, may_come = self._held, False
        for found in _LEADS_IN.finditer(held[:_PREAMBLE]):
            again = held[found.end() :]
            key = again[:_ECHO]
            words = "".join(filter(str.isalpha, held[: found.start()].casefold()))[-_WORDS:]
            if len(words) < _WORDS or words in self._words:
                continue
            if self._searched.count(key) != 1 or (at := self._end.find(key)) < 0 or self._searched.startswith(key):
                may_come |= len(key) < _ECHO and key in self._end
                continue
            if again.startswith(self._end[at:]) and len(key) == _ECHO:
                return found.end() + len(self._end) - at
            may_come |= self._end.startswith(again, at)
        return None if may_come else 0

    def _restart(self) -> str:
        self._held, self.open, self.restarted = "", False, True
        return ""


def _comes_again(text: str, begin: int) -> bool:
    """Return whether any piece of a text's beginning stands in the rest of it once more: then it may well come a third time."""
    probes = range(begin, min(begin + _BEGINNING, len(text)) - _PROBE, _PROBE)
    return any(text.find(text[at : at + _PROBE], at + 1) >= 0 for at in probes)


def _letters(text: str) -> str:
    """A text without all that is lost when it is put in another form."""
    return "".join(filter(str.isalnum, text.casefold()))


def _grams(letters: str) -> list[str]:
    return [letters[at : at + _GRAM] for at in range(len(letters) - _GRAM + 1)]


def _rare(part: str, text: str) -> frozenset[str]:
    """Return what stands in a part, and only once in the text."""
    counts: dict[str, int] = {}
    for gram in _grams(text):
        counts[gram] = counts.get(gram, 0) + 1
    return frozenset(gram for gram in _grams(part) if counts.get(gram, 1) == 1)
