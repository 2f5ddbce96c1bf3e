"""The seam between two attempts: a continuation that begins by repeating the answer loses that part; a real repetition stays."""

import re

from typing_extensions import override

from proxy.stream.answer import last_word
from proxy.stream.events import Reopened
from proxy.stream.thinking import Filter, ThoughtFilter, after_thought, open_thought

_LONGEST_OVERLAP = 400
_SHORTEST_OVERLAP = 16
_SURE = 80
"""Characters of an overlap that counts even after white space: in some vocabularies every text begins with a space."""
_STOPS, _CLOSING = ",.;:!?…", ")]}%»\u201d\u2019"
"""Characters that follow a word without white space. A closing bracket may also stand alone on a line."""
_CONTEXT = 8
"""Characters by which a place in a text is recognised."""
LONG = 160
"""Characters in common with the beginning of the answer above which a continuation is a copy rather than a refrain."""
_BEGINNING = 64
"""Characters of an answer's beginning that are searched for in the rest of it."""
_PRECEDENTS_IN = 4096
"""Characters of an answer that are searched for precedents."""
_HALF_WORD = 3
"""Shortest half word, in characters, that is recognised when the model writes it again."""


def seam_for(reopened: Reopened, text: str, gap: str, *, calls: bool = False) -> "Seam":
    """Return the filters between an answer with this text and the attempt that continues it.

    `gap` is the white space before the next word, if that is known; `calls`: the attempt before was left during a tool call,
    which is made again, maybe with the text before it.
    """
    if not text:
        return NO_SEAM
    thought, quoted = open_thought(text), not (reopened.exact or reopened.echo)
    copied = text if text == reopened.echo or calls or len(text) > _BEGINNING else ""
    filters: list[Filter] = [
        EchoFilter(copied),
        ThoughtFilter(thought, closes=quoted),
        EchoFilter("" if text == reopened.echo else reopened.echo),
        # Interrupted thinking that can't be continued is expected to start over, so that is not a restarted answer.
        RestartFilter("" if thought and quoted else text),
        SpacedFilter(gap, "" if gap or not quoted else text),
    ]
    if gap or quoted:
        # After a plain continuation, text that begins with the white space due here goes on. Anything else most likely comes
        # from a model that took the request for a new turn, and may repeat the end.
        tail = reopened.quote or text[-_LONGEST_OVERLAP:]
        filters.insert(3, OverlapFilter(tail, text, unless_spaced=not quoted))
    return Seam(*filters)


class Seam:
    """Filters that the beginning of a resumed answer passes, one after the other."""

    def __init__(self, *filters: Filter) -> None:
        self._filters = filters
        self.taken_in = self.given_out = 0
        """Characters fed and passed on while the seam was open."""

    @property
    def open(self) -> bool:
        """Return whether text may still be held, removed or inserted."""
        return any(each.open for each in self._filters)

    @property
    def restarted(self) -> bool:
        """Return whether the model began its answer anew instead of going on."""
        return any(each.restarted for each in self._filters)

    def feed(self, text: str) -> str:
        """Take in new text, and return text for the client."""
        if not self.open:
            return text
        self.taken_in += len(text)
        for each in self._filters:
            text = each.feed(text)
        self.given_out += len(text)
        return text

    def flush(self) -> str:
        """Return what is held when the attempt ends; nothing is held after it."""
        text = ""
        for each in self._filters:
            text = each.feed(text) + each.flush()
        self.given_out += len(text)
        return text


NO_SEAM = Seam()
"""Lets everything pass, and keeps nothing."""


class EchoFilter(Filter):
    """Removes a copy of the answer, if the backend repeats it whole or the model starts from the top again.

    LM Studio with llama.cpp engines from 2.21 on repeats the text that it is to continue; others do not. A copy is removed
    only once every character of it has come, so text that merely begins alike passes. White space at the ends of the copy
    may be missing, because chat templates trim it; white space that the client has is not sent again.

    If a long beginning is the same and the text then differs or ends, it is another version of the answer, and none of it
    passes. If the answer repeats its own beginning, a copy or a new version looks just like more of the same. Then a copy
    has to come in one piece, as llama.cpp's parser sends text that it did not generate (`common_chat_msg_diff`, October 2026).
    """

    def __init__(self, echo: str) -> None:
        """`echo` is the text that may be repeated. If it is empty, nothing is held."""
        super().__init__(is_open=bool(echo.strip()))
        self._copy = echo.lstrip()
        self._core = len(echo.strip())
        self._at = 0
        """Characters of the copy received so far."""
        self._margin = ""
        """White space received before them."""
        self._in_one_piece = repeats_its_beginning(self._copy)

    @override
    def feed(self, text: str) -> str:
        if not self.open or not text:
            return "" if self.restarted else text
        if self._at == 0:
            space = margin(text)
            self._margin, text = self._margin + space, text[len(space) :]
        same = _same(self._copy, self._at, text)
        self._at += same
        broken = self._in_one_piece and bool(text) and self._at < self._core
        if same == len(text) and self._at < len(self._copy) and not broken:
            return ""
        after_core = "" if self._at == len(self._copy) else self._copy[self._core : self._at]
        return self._close(after_core + text[same:], text[same:])

    @override
    def flush(self) -> str:
        return self._close("", "") if self.open else ""

    def _close(self, behind_copy: str, rest: str) -> str:
        """Return the text after a complete copy, or else all text received, of which `rest` differs from the copy."""
        self.open = False
        if self._at >= self._core:
            return behind_copy
        if self._at >= LONG and not self._in_one_piece:
            self.restarted = True
            return ""
        return self._margin + self._copy[: self._at] + rest


class OverlapFilter(Filter):
    """Removes the quoted end of the text when a model begins its continuation by repeating it.

    In general it is impossible to know whether a model repeats itself or continues a text that repeats: after equal
    lines, either may follow. So an overlap of at least 16 characters is removed only if it has no precedent. It passes
    if the last words occurred earlier and were followed by the same text as now, or if a piece as long as the overlap
    occurred twice in a row. A text that repeats itself loses one piece at most: if the pause falls right after the first
    piece, the second looks like an overlap.
    """

    def __init__(self, before: str, text: str = "", *, unless_spaced: bool = False) -> None:
        """`before` is the text that the model was shown as the end of its answer, `text` more of that answer.

        `unless_spaced`: a text that begins with white space is not taken for a repetition, unless the overlap is long.
        """
        self._unless_spaced = unless_spaced
        self._answer = (text or before)[-_PRECEDENTS_IN:]
        self._candidates = _overlaps(before[-_LONGEST_OVERLAP:], self._answer, bare=unless_spaced)
        """Beginnings of the continuation that would be repetitions, longest first."""
        super().__init__(is_open=bool(self._candidates))

    @override
    def _judge(self, *, ended: bool) -> str:
        held = self._held
        if self._unless_spaced and held[:1].isspace():
            self._candidates = [c for c in self._candidates if len(c) >= _SURE]
        bare = held.lstrip() if self._unless_spaced else held
        self._candidates = [c for c in self._candidates if bare.startswith(c) or (c.startswith(bare) and not ended)]
        longest = self._candidates[0] if self._candidates else ""
        if not bare.startswith(longest):
            return ""
        repeated = bool(longest) and not _repeats(self._answer, len(longest))
        return self._release(len(held) - len(bare) + len(longest) if repeated else 0)


class SpacedFilter(Filter):
    """Puts white space between two attempts when the second one begins a new word without any.

    A model that is asked to go on in a new turn rarely begins with the white space that is due. If the answer ended in half
    a word, the model begins with the whole word, and the half is removed.
    """

    def __init__(self, gap: str, text: str = "") -> None:
        """`gap` is the white space due between the attempts (maybe none), `text` an answer that may end in half a word."""
        self._gap = gap
        half = last_word(text)
        self._half = half if half.isalpha() and len(half) >= _HALF_WORD else ""
        super().__init__(is_open=bool(gap or self._half))

    @override
    def _judge(self, *, ended: bool) -> str:
        held, half = self._held, self._half
        if half and held[: len(half)] == half[: len(held)]:
            if len(held) <= len(half) and not ended:
                return ""
            return self._release(len(half) if held[len(half) : len(half) + 1].isalpha() else 0)
        joins = not held or held[0].isspace() or held[0] in (_STOPS if "\n" in self._gap else _STOPS + _CLOSING)
        return ("" if joins else self._gap) + self._release(0)


def repeats_its_beginning(text: str) -> bool:
    """Return whether a text begins like something that it says again later."""
    return text.find(text[: min(_BEGINNING, len(text) // 2)], 1) > 0


def margin(text: str) -> str:
    """Return the white space at the beginning of a text."""
    return text[: len(text) - len(text.lstrip())]


def _same(copy: str, at: int, text: str) -> int:
    """Return how many of the text's first characters continue the copy after `at`."""
    if copy.startswith(text, at):
        return len(text)
    pairs = zip(copy[at : at + len(text)], text, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(copy) - at)


def _repeats(text: str, length: int) -> bool:
    """Return whether a text contains a piece of this length twice in a row."""
    run = 0
    for a, b in zip(text, text[length:], strict=False):
        run = run + 1 if a == b else 0
        if run == length:
            return True
    return False


def _overlaps(tail: str, text: str, *, bare: bool) -> list[str]:
    """Return the ends of `tail` without precedent in the text, longest first; `bare`: precedents after white space count too."""
    last = text[-_CONTEXT:]
    places = [at + _CONTEXT for at in range(len(text) - _CONTEXT) if text.startswith(last, at)]
    followers = {text[at:][:_SHORTEST_OVERLAP] for at in places}
    if bare:
        followers |= {text[at : at + 4 * _SHORTEST_OVERLAP].lstrip()[:_SHORTEST_OVERLAP] for at in places}
    ends = (tail[at:] for at in range(len(tail) - _SHORTEST_OVERLAP + 1))
    return [end for end in ends if end[:_SHORTEST_OVERLAP] not in followers]


# -- an answer begun anew

_LOOK = 96
"""Characters of a continuation that are examined before it passes."""
_RECOGNISED, _END = 800, 1000
"""Characters of an answer's beginning, and of its end, that are recognised when they come again."""
_SEARCHED = 4096
"""Characters at either end of an answer in which a recognised piece must occur only once."""
_OPENING = 100
"""Letters at an answer's beginning within which a new version has to start. A text like a later place is not a new version:
it may be a refrain, or a corrected form of something that the answer showed.
"""
_GRAM = 8
"""Length of the runs of letters and digits by which texts are compared."""
_JUDGED = (32, 240)
"""Fewest and most runs needed for a verdict."""
_RISING, _SAME = 0.4, 0.5
"""Shares of runs found in the beginning of the answer: below the first nothing is suspected, at the second it is the same text."""
_ECHO = 40
"""Characters of an answer's end that cannot follow a preamble by coincidence."""
_PROBE = 32
"""Characters of an answer's beginning that cannot occur again by coincidence."""
_PREAMBLE = 200
_WORDS = 8
"""Fewest letters of a preamble; its words must not be the answer's own."""
_LEADS_IN = re.compile(r"(?:[:\n…]|\.\.\.)[\s\"'“„«>*`]*")
"""Separator between a preamble and the text that it announces."""


class RestartFilter(Filter):
    """Holds the beginning of a continuation until it is neither a new version of the answer nor an echo of its end.

    Text that the answer itself says twice is ignored, since nobody could tell a new version from one more repetition.
    """

    def __init__(self, text: str) -> None:
        """`text` is the answer so far."""
        searched = text if len(text) <= 2 * _SEARCHED else text[:_SEARCHED] + text[-_SEARCHED:]
        self._searched = searched
        self._words = "".join(filter(str.isalpha, searched.casefold()))
        self._end = text[-_END:]
        answer = after_thought(text)
        beginning, searched_letters = _letters(answer[:_RECOGNISED]), _letters(searched)
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
        """Return the share of runs, from the first one in the answer's opening on, that its beginning has; and their number."""
        grams = _grams(_letters(self._held[:_END]))
        start = next((at for at, gram in enumerate(grams[:_PREAMBLE]) if gram in self._first), None)
        if start is None:
            return 0.0, 0
        matches = [gram in self._own for gram in grams[start : start + self._judged]]
        return sum(matches) / len(matches), len(matches)

    def _echo(self) -> int | None:
        """Return the length of a preamble with an echo of the answer's end after it; 0 without one, None if one may still come."""
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
    """Return whether any piece of a text's beginning occurs in it again, in which case it may well come a third time."""
    probes = range(begin, min(begin + _RECOGNISED, len(text)) - _PROBE, _PROBE)
    return any(text.find(text[at : at + _PROBE], at + 1) >= 0 for at in probes)


def _letters(text: str) -> str:
    """Return a text's letters and digits, case-folded: these survive a change of format."""
    return "".join(filter(str.isalnum, text.casefold()))


def _grams(letters: str) -> list[str]:
    return [letters[at : at + _GRAM] for at in range(len(letters) - _GRAM + 1)]


def _rare(part: str, text: str) -> frozenset[str]:
    """Return the runs of a part that do not occur more than once in the text."""
    counts: dict[str, int] = {}
    for gram in _grams(text):
        counts[gram] = counts.get(gram, 0) + 1
    return frozenset(gram for gram in _grams(part) if counts.get(gram, 1) == 1)
