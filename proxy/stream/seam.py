"""The seam between two attempts: a repeated beginning is taken out, a real repetition is not."""

import re

from typing_extensions import override

from proxy.stream.answer import last_word
from proxy.stream.events import Reopened
from proxy.stream.thinking import Filter, ThoughtFilter, after_thought, open_thought

_LONGEST_OVERLAP = 400
_SHORTEST_OVERLAP = 16
_SURE = 80
"""Characters of an overlap that is one whatever it begins with: in some vocabularies every text begins with a space."""
_STOPS, _CLOSING = ",.;:!?…", ")]}%»\u201d\u2019"
"""What follows a word without white space; on a line of its own a bracket may stand alone."""
_CONTEXT = 8
"""Characters by which a place in a text is recognised."""
LONG = 160
"""Characters that a continuation has in common with the beginning of the answer when that is no refrain."""
_BEGINNING = 64
"""Characters by which the beginning of an answer is looked for in the rest of it."""
_PRECEDENTS_IN = 4096
"""Characters of an answer that are searched for precedents."""
_HALF_WORD = 3
"""Characters of half a word, at least, that is recognised when it is written again."""


def seam_for(reopened: Reopened, text: str, gap: str) -> "Seam":
    """Return what stands between an answer with this text and the attempt that goes on with it.

    `gap` is the white space before the word that was not taken, if that is known.
    """
    if not text:
        return NO_SEAM
    thought, quoted = open_thought(text), not (reopened.exact or reopened.echo)
    copied = text if text == reopened.echo or reopened.calls or len(text) > _BEGINNING else ""
    filters: list[Filter] = [
        EchoFilter(copied),
        ThoughtFilter(thought, closes=quoted),
        EchoFilter("" if text == reopened.echo else reopened.echo),
        # A thought that was interrupted is thought anew where it can't be gone on with.
        RestartFilter("" if thought and quoted else text),
        SpacedFilter(gap, "" if gap or not quoted else text),
    ]
    if gap or quoted:
        # What begins with the white space that belongs here goes on; what does not is most likely a new turn.
        tail = reopened.quote or text[-_LONGEST_OVERLAP:]
        filters.insert(3, OverlapFilter(tail, text, unless_spaced=not quoted))
    return Seam(*filters)


class Seam:
    """Filters that the beginning of a resumed answer passes, one after the other."""

    def __init__(self, *filters: Filter) -> None:
        self._filters = filters
        self.taken_in = self.given_out = 0
        """Characters that came in and went out while it was open."""

    @property
    def open(self) -> bool:
        """Return whether text may still be held back, taken out or put in."""
        return any(each.open for each in self._filters)

    @property
    def restarted(self) -> bool:
        """Return whether the model began its answer anew instead of going on."""
        return any(each.restarted for each in self._filters)

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
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

    LM Studio with llama.cpp engines from 2.21 on repeats the text that it is to continue, others do not; a copy
    is taken out only when every character of it came, so text that merely begins alike is let through. White
    space at the ends of the copy may be missing, because chat templates trim it; white space that the client has
    is not sent again.

    A long beginning that is the same, and then differs or ends, is another version of the same answer: nothing of it is
    let through. Of an answer that repeats itself neither is to be told from more of the same: there a copy has to come in
    one piece, which is how llama.cpp's parser hands out what it did not generate (`common_chat_msg_diff`, October 2026).
    """

    def __init__(self, echo: str) -> None:
        """`echo` is the text that may be repeated; empty: nothing is held back."""
        super().__init__(is_open=bool(echo.strip()))
        self._copy = echo.lstrip()
        self._core = len(echo.strip())
        self._at = 0
        """Characters of the copy that came."""
        self._margin = ""
        """White space that came before them."""
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
        """Return what is behind the copy if all of it came, else all that came: `rest` is what differs from it."""
        self.open = False
        if self._at >= self._core:
            return behind_copy
        if self._at >= LONG and not self._in_one_piece:
            self.restarted = True
            return ""
        return self._margin + self._copy[: self._at] + rest


class OverlapFilter(Filter):
    """Removes the quoted end of the text when a model begins its continuation by repeating it.

    Whether a model repeats itself, or goes on with a text that repeats, cannot be told in general: after equal
    lines either may come. So an overlap of at least 16 characters is taken out only where it has no precedent.
    It is let through where the last words of the text stood before and were followed by the same as now, and
    where a piece as long as the overlap has stood twice in a row before. Of a text that repeats itself nothing is
    lost but perhaps one piece: when the pause falls right after the first, the second is not to be told from an
    overlap.
    """

    def __init__(self, before: str, text: str = "", *, unless_spaced: bool = False) -> None:
        """`before` is the text that the model was shown as the end of its answer, `text` more of that answer.

        `unless_spaced`: what begins with white space is no repetition, unless it is a long one.
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

    A model that is asked in a new turn to go on rarely begins with the space that belongs there. Where it was asked to
    finish half a word, it begins with the whole one: then the half is taken out.
    """

    def __init__(self, gap: str, text: str = "") -> None:
        """`gap` is the white space that belongs between the attempts, maybe none; `text` a text that may end in half a word."""
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
    """The white space that a text begins with."""
    return text[: len(text) - len(text.lstrip())]


def _same(copy: str, at: int, text: str) -> int:
    """Return how many characters of the text are the next ones of the copy."""
    if copy.startswith(text, at):
        return len(text)
    pairs = zip(copy[at : at + len(text)], text, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(copy) - at)


def _repeats(text: str, length: int) -> bool:
    """Return whether a piece of this length stands twice in a row somewhere in a text."""
    run = 0
    for a, b in zip(text, text[length:], strict=False):
        run = run + 1 if a == b else 0
        if run == length:
            return True
    return False


def _overlaps(tail: str, text: str, *, bare: bool) -> list[str]:
    """The ends of a text that it has no precedent for, longest first; `bare`: nor one behind white space."""
    last = text[-_CONTEXT:]
    places = [at + _CONTEXT for at in range(len(text) - _CONTEXT) if text.startswith(last, at)]
    followers = {text[at:][:_SHORTEST_OVERLAP] for at in places}
    if bare:
        followers |= {text[at : at + 4 * _SHORTEST_OVERLAP].lstrip()[:_SHORTEST_OVERLAP] for at in places}
    ends = (tail[at:] for at in range(len(tail) - _SHORTEST_OVERLAP + 1))
    return [end for end in ends if end[:_SHORTEST_OVERLAP] not in followers]


# -- an answer that is begun anew

_LOOK = 96
"""Characters of a continuation that are looked at before it is believed to be one."""
_RECOGNISED, _END = 800, 1000
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
    probes = range(begin, min(begin + _RECOGNISED, len(text)) - _PROBE, _PROBE)
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
