"""The seam between two attempts: a repeated beginning is taken out, a real repetition is not."""

from __future__ import annotations

from typing import Protocol

from proxy.stream.anew import RestartFilter
from proxy.stream.events import Reopened
from proxy.stream.thinking import ThoughtFilter, open_thought

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


class Seam(Protocol):
    """Filters the beginning of a resumed answer."""

    @property
    def open(self) -> bool:
        """Return whether text may still be held back, taken out or put in."""
        ...

    @property
    def restarted(self) -> bool:
        """Return whether the model began its answer anew instead of going on."""
        ...

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
        ...

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held when the attempt ends, or was `interrupted` before its end; nothing is held after it."""
        ...


def seam_for(reopened: Reopened, said: str, gap: str) -> Seam:
    """Return what stands between an answer that said so much and the attempt that goes on with it.

    `gap` is the white space before the word that was not taken, if that is known.
    """
    if not said:
        return Joint()
    thought, quoted = open_thought(said), not (reopened.exact or reopened.echo)
    return Joint(
        EchoFilter(said if said == reopened.echo or reopened.calls else _long(said)),
        ThoughtFilter(thought, closes=quoted),
        EchoFilter("" if said == reopened.echo else reopened.echo),
        # What begins with the white space that belongs here goes on; what does not is most likely a new turn.
        OverlapFilter(reopened.quote or said[-_LONGEST_OVERLAP:], said, unless_spaced=not quoted)
        if gap or quoted
        else Joint(),
        # A thought that was interrupted is thought anew where it can't be gone on with.
        RestartFilter("" if thought and quoted else said),
        SpacedFilter(gap),
    )


def _long(said: str) -> str:
    """Return what is long enough to tell a copy of it from a coincidence."""
    return said if len(said) > _BEGINNING else ""


class EchoFilter:
    """Removes a copy of what was said, if the backend repeats it whole or the model starts from the top again.

    LM Studio with llama.cpp engines from 2.21 on repeats the text that it is to continue, others do not; a copy
    is taken out only when every character of it came, so text that merely begins alike is let through. White
    space at the ends of the copy may be missing, because chat templates trim it; white space that the client has
    is not sent again.

    A long beginning that is the same, and then differs, is another version of the same answer: nothing of it is
    let through and `restarted` tells. Of an answer that repeats itself neither is to be told from more of the
    same: there a copy has to come in one piece, which is how llama.cpp's parser hands out what it did not
    generate (`common_chat_msg_diff`, October 2026).
    """

    def __init__(self, echo: str) -> None:
        """`echo` is the text that may be repeated; empty: nothing is held back."""
        self._copy = echo.lstrip()
        self._core = len(echo.strip())
        self._at = 0
        self._held: list[str] = []
        self._at_once = repeats_its_beginning(self._copy)
        self.restarted = False
        self.open = self._core > 0

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
        if not self.open or not text:
            return "" if self.restarted else text
        self._held.append(text)
        if self._at == 0:
            text = text.lstrip()
        same = _same(self._copy, self._at, text)
        self._at += same
        if self._at_once and text and self._at < self._core:
            self._at = 0
        elif same == len(text) and self._at < len(self._copy):
            return ""
        return self._release(text[same:])

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held: the beginning of a copy is the end of a real text, or of one that was begun anew."""
        if not self.open:
            return ""
        whole = self._at >= self._core
        if not (interrupted and not whole and self._at >= LONG):
            self._at = len(self._copy) if whole else 0
        if whole:
            self._held.clear()
        return self._release("")

    def _release(self, rest: str) -> str:
        """End the search: `rest` is what came after the last character that was alike."""
        if self._at == len(self._copy):
            out = rest
        elif self._at >= self._core:
            out = self._copy[self._core : self._at] + rest
        elif self._at >= LONG:
            out, self.restarted = "", True
        else:
            out = "".join(self._held)
        self._held, self.open = [], False
        return out


def repeats_its_beginning(text: str) -> bool:
    """Return whether a text begins like something that it says again later."""
    return text.find(text[: min(_BEGINNING, len(text) // 2)], 1) > 0


def _same(copy: str, at: int, text: str) -> int:
    """Return how many characters of the text are the next ones of the copy."""
    if copy.startswith(text, at):
        return len(text)
    pairs = zip(copy[at : at + len(text)], text, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(copy) - at)


class OverlapFilter:
    """Removes the quoted end of the text when a model begins its continuation by repeating it.

    Whether a model repeats itself, or goes on with a text that repeats, cannot be told in general: after equal
    lines either may come. So an overlap of at least 16 characters is taken out only where it has no precedent.
    It is let through where the last words of the text stood before and were followed by the same as now, and
    where a piece as long as the overlap has stood twice in a row before. Of a text that repeats itself nothing is
    lost but perhaps one piece: when the pause falls right after the first, the second is not to be told from an
    overlap.
    """

    def __init__(self, before: str, said: str = "", *, unless_spaced: bool = False) -> None:
        """`before` is the text that the model was shown as the end of its answer, `said` more of that answer.

        `unless_spaced`: what begins with white space is no repetition, unless it is a long one.
        """
        self._unless_spaced = unless_spaced
        self._said = (said or before)[-_PRECEDENTS_IN:]
        self._candidates = _overlaps(before[-_LONGEST_OVERLAP:], self._said, bare=unless_spaced)
        """Beginnings of the continuation that would be repetitions, longest first."""
        self._held = ""
        self.restarted = False
        self.open = bool(self._candidates)

    def feed(self, text: str) -> str:
        """New text in, text for the client out; held back only while it may still be a repetition."""
        if not self.open:
            return text
        self._held += text
        if self._unless_spaced and self._held[:1].isspace():
            self._candidates = [c for c in self._candidates if len(c) >= _SURE]
        held = self._is_repeated()
        self._candidates = [c for c in self._candidates if held.startswith(c) or c.startswith(held)]
        if not self._candidates:
            return self._release(0)
        longest = self._candidates[0]
        return self._release(len(longest)) if held.startswith(longest) else ""

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held when the attempt ends, less a whole repetition."""
        del interrupted
        held = self._is_repeated()
        whole = [c for c in self._candidates if held.startswith(c)]
        return self._release(len(whole[0]) if whole else 0)

    def _is_repeated(self) -> str:
        return self._held.lstrip() if self._unless_spaced else self._held

    def _release(self, cut: int) -> str:
        if cut and _repeats(self._said, cut):
            cut = 0
        cut += len(self._held) - len(self._is_repeated()) if cut else 0
        out, self._held, self.open = self._held[cut:], "", False
        self._candidates, self._said = [], ""
        return out


class SpacedFilter:
    """Puts white space between two attempts when the second one begins a new word without any.

    A model that is asked in a new turn to go on rarely begins with the space that belongs there.
    """

    restarted = False

    def __init__(self, gap: str) -> None:
        """`gap` is the white space that belongs between the attempts, maybe none."""
        self._gap = gap

    @property
    def open(self) -> bool:
        """Return whether white space may still be put in."""
        return bool(self._gap)

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
        if not text:
            return text
        gap, self._gap = self._gap, ""
        joins = text[0].isspace() or text[0] in (_STOPS if "\n" in gap else _STOPS + _CLOSING)
        return text if joins else gap + text

    def flush(self, *, interrupted: bool = False) -> str:
        """Nothing is ever held."""
        del interrupted
        return ""


class Joint:
    """Several filters, one after the other."""

    def __init__(self, *filters: Seam) -> None:
        """`filters` in the order in which text passes them."""
        self._filters = filters

    @property
    def open(self) -> bool:
        """Return whether any of them may still change something."""
        return any(each.open for each in self._filters)

    @property
    def restarted(self) -> bool:
        """Return whether any of them recognised a new beginning."""
        return any(each.restarted for each in self._filters)

    def feed(self, text: str) -> str:
        """New text in, text for the client out."""
        for each in self._filters:
            text = each.feed(text)
        return text

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held when the attempt ends."""
        text = ""
        for each in self._filters:
            text = each.feed(text) + each.flush(interrupted=interrupted)
        return text


def margin(text: str) -> str:
    """The white space that a text begins with."""
    return text[: len(text) - len(text.lstrip())]


def _repeats(said: str, length: int) -> bool:
    """Return whether a piece of this length stands twice in a row somewhere in a text."""
    run = 0
    for a, b in zip(said, said[length:], strict=False):
        run = run + 1 if a == b else 0
        if run == length:
            return True
    return False


def _overlaps(tail: str, said: str, *, bare: bool) -> list[str]:
    """The ends of a text that it has no precedent for, longest first; `bare`: nor one behind white space."""
    last = said[-_CONTEXT:]
    places = [at + _CONTEXT for at in range(len(said) - _CONTEXT) if said.startswith(last, at)]
    followers = {said[at:][:_SHORTEST_OVERLAP] for at in places}
    if bare:
        followers |= {said[at : at + 4 * _SHORTEST_OVERLAP].lstrip()[:_SHORTEST_OVERLAP] for at in places}
    ends = (tail[at:] for at in range(len(tail) - _SHORTEST_OVERLAP + 1))
    return [end for end in ends if end[:_SHORTEST_OVERLAP] not in followers]
