"""Recognising an answer that is told again: in nearly the same words, or its end once more behind words about it.

A server that ignores how it was asked to go on, or a template that closes the turn, has the model begin a new turn. Then it
repeats itself, seldom letter by letter.
"""

from __future__ import annotations

import re

from proxy.stream.thinking import after_thought

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


class RestartFilter:
    """Holds the beginning of a continuation back until it is known to be none of these.

    Repetitive texts can't be told apart from themselves: of what the answer says twice nothing is looked for.
    """

    def __init__(self, said: str) -> None:
        """`said` is the answer so far."""
        searched = said if len(said) <= 2 * _SEARCHED else said[:_SEARCHED] + said[-_SEARCHED:]
        self._searched = searched
        self._words = "".join(filter(str.isalpha, searched.casefold()))
        self._end = said[-_END:]
        begun = after_thought(said)
        beginning, whole = _letters(begun[:_BEGINNING]), _letters(searched)
        self._own, self._first = _rare(beginning, whole), _rare(beginning[:_OPENING], whole)
        least, most = _JUDGED
        self._judged = max(least, min(most, int(0.8 * len(self._own))))
        if len(self._own) < least or _comes_again(said, len(said) - len(begun)):
            self._own = frozenset()
        self._held = ""
        self.restarted = False
        self.open = bool(self._own) or len(said) >= _ECHO

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
        if not self.open or not text:
            return "" if self.restarted else text
        self._held += text
        echo = self._echo()
        if echo:
            return self._release(echo)
        doubt = self._doubt()
        if doubt is None and echo is not None:
            return self._restart()
        return "" if doubt is not False or echo is None or len(self._held) < _LOOK else self._release(0)

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held when the attempt ends."""
        del interrupted
        if not self.open:
            return ""
        share, letters = self._alike()
        echo = self._echo() or 0
        if not echo and letters >= _JUDGED[0] and share > _SAME:
            return self._restart()
        return self._release(echo)

    def _doubt(self) -> bool | None:
        """Return whether it may still turn out to be the answer from its beginning on; None: it is."""
        share, letters = self._alike()
        if letters < self._judged:
            return letters > 0 and (share >= _RISING or letters < _JUDGED[0] // 2)
        return None if share >= _SAME else False

    def _alike(self) -> tuple[float, int]:
        """Return how much of what is held stands in the beginning of the answer, from where it is taken up, and out of how many."""
        grams = _grams(_letters(self._held[:_END]))
        start = next((at for at, gram in enumerate(grams[:_PREAMBLE]) if gram in self._first), None)
        if start is None:
            return 0.0, 0
        alike = [gram in self._own for gram in grams[start : start + self._judged]]
        return sum(alike) / len(alike), len(alike)

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

    def _release(self, cut: int) -> str:
        out, self._held, self.open = self._held[cut:], "", False
        return out

    def _restart(self) -> str:
        self._held, self.open, self.restarted = "", False, True
        return ""


def _comes_again(said: str, begin: int) -> bool:
    """Return whether any piece of a text's beginning stands in the rest of it once more: then it may well come a third time."""
    probes = range(begin, min(begin + _BEGINNING, len(said)) - _PROBE, _PROBE)
    return any(said.find(said[at : at + _PROBE], at + 1) >= 0 for at in probes)


def _letters(text: str) -> str:
    """A text without all that is lost when it is said in another form."""
    return "".join(filter(str.isalnum, text.casefold()))


def _grams(letters: str) -> list[str]:
    return [letters[at : at + _GRAM] for at in range(len(letters) - _GRAM + 1)]


def _rare(part: str, whole: str) -> frozenset[str]:
    """Return what stands in a part, and only once in the whole."""
    counts: dict[str, int] = {}
    for gram in _grams(whole):
        counts[gram] = counts.get(gram, 0) + 1
    return frozenset(gram for gram in _grams(part) if counts.get(gram, 1) == 1)
