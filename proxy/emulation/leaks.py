"""Calls that a model with tools of its own wrote as text, at the end of its answer, where nothing else can be meant.

Backends take calls out of what a model writes with one parser per model; one that does not fit, or a model that slips into
another form, leaves the call in the text, and the finish reason is `stop` (Ollama issue 13519, llama.cpp issue 14697, LM
Studio's bug tracker 821). It is read back where all of this holds: the tool was offered and the arguments fit its schema; the
answer ends with it, in good order, and has made no call of the usual kind; a mark that says "call" begins a line or follows a
sentence, while JSON, a code block and a list in Python, which may as well be shown, stand alone, or behind a few words that
announce them. Anything else stays text, byte for byte: an example, however well-formed, is never called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from proxy.core.piece import CallPart, Piece, calls_finish
from proxy.emulation.calls import (
    EXAMPLE_SHOWN,
    MOST_FAULTS,
    UNFINISHED,
    Call,
    CallFault,
    FormCount,
    Malformed,
    Text,
    fault_of,
)
from proxy.emulation.forms import FORMS
from proxy.emulation.offer import Offer
from proxy.emulation.scanner import CallScanner
from proxy.stream.events import Correct

_MARKED = frozenset(form.name for form in FORMS if form.marked)
_ANNOUNCED = 200
"""Characters that a few words have at most."""
_BEFORE = 300
"""Characters before a call that are looked at."""
_TAIL = 256
_UNREAD = 8192
_OVER = re.compile(r"(?:\s|<([|｜])[\w▁]{0,32}+\1>|</s>)*+(?:<(?:[|｜](?:[\w▁]{0,32}+[|｜]?)?|/s?)?)?")
"""What may stand behind a call, and its beginning: white space, and marks that close and end and leaked with it."""
_EARLY, _LATE = re.compile(r"[<\[{`]"), re.compile(r"[<\[]")
"""What a call may begin with: near the beginning of an answer, and later."""
_SENTENCE_END = re.compile(r"[.!?)\u2026\u3002\uff01\uff1f\U0001f000-\U0001ffff]\s*\Z")
_SHOWS = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like (?:this|so)|looks? like|would|could|should look|syntax|formats?|templates?"
    r"|illustrat\w+|demonstrat\w+|samples?|hypothetical\w*|never|instead of|don't|do not|how to|you (?:can|may|should|must|need)"
    r"|show|explain|describe|tell you|here(?:['\u2019]s| is| are)"
    r"|beispiel\w*|z\. ?b|würde|könnte|exemples?|ejemplos?|esempi\w*|exemplos?)\b|例|示例|格式|пример",
    re.IGNORECASE,
)
"""Words of those who show something."""
_ANNOUNCES = re.compile(
    r"\b(?:I['\u2019]ll|I will|I['\u2019]m going to|I am going to|I need to|I have to|I['\u2019]m \w+ing|let me|let['\u2019]s|now I|first, I"
    r"|(?:calling|checking|looking|searching|reading|running|fetching|opening|writing|creating|updating)\b"
    r"|ich werde|ich rufe|ich prüfe|ich sehe|ich schaue|ich suche|ich lese|lass mich|je vais|laissez-moi|voy a|déjame|vou|deixe-me)\b"
    r"|让我|我来|我将|我会|我需要",
    re.IGNORECASE,
)
"""Words of those who are about to do something."""


class LeakedCalls:
    """Pieces in, pieces out: as they came, but for a call that turns out to have been meant as one.

    What may become a call is held from its mark on, with the piece that this came in; nothing else is. Linear in the text.
    """

    def __init__(self, offer: Offer, make_id: Callable[[], str], *, text_before: str = "") -> None:
        """`make_id` makes ids of calls, `text_before` is what earlier attempts at the answer have said."""
        self._offer = offer
        self._make_id = make_id
        self._scanner = CallScanner(offer)
        self._scanner.resume(text_before)
        self._before = text_before[-_BEFORE:]
        self._size = len(text_before)
        """Characters of the answer before what is held."""
        self._held: list[Piece] = []
        self._held_size = 0
        self._found: list[Call | Malformed] = []
        """Calls behind which there is nothing else yet."""
        self._behind = ""
        self._unread: list[str] = []
        """Text that was said and can't be part of a call; it is read when it has to be known where the next text stands."""
        self._unread_size = 0
        self._showing = False
        """Whether the answer has shown a call before."""
        self._over = not offer.callable
        self.faults: list[CallFault] = []
        """What was found to be wrong with calls; the owner takes them out."""
        self.leaked = 0
        """Calls that were read back; the same."""
        self.stats: dict[str, FormCount] = {}
        """Those of emulated calls, of which there are none."""

    @property
    def holding(self) -> bool:
        """Return whether the next piece has to be read, whatever it holds."""
        return bool(self._held)

    @property
    def suspects(self) -> re.Pattern[str] | None:
        """Pattern of text that has to be read; None: nothing has to be any more."""
        if self._over:
            return None
        return _EARLY if self._scanner.answered <= _ANNOUNCED else _LATE

    @property
    def unseen(self) -> int:
        """Tokens of what is held, about; a piece is one, or of some characters each."""
        return max(len(self._held), self._held_size // 4)

    def missed(self, text: str) -> None:
        """Take in what was said and is in no piece that was fed."""
        if self._over or not text:
            return
        self._unread.append(text)
        self._unread_size += len(text)
        if self._unread_size > _UNREAD:
            self._catch_up()

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """Take in the next piece; what may be said now."""
        if piece.aside or self._over:
            return (piece,)
        if piece.calls or piece.error or (piece.thought and self._held):
            self._over = True
            return (*self._released(), piece)
        if piece.done:
            return (*self._ended(None), piece)
        if not (piece.finish or self._held) and (
            (suspects := self.suspects) is None or not suspects.search(piece.text)
        ):
            self.missed(piece.text)
            return (piece,)
        self._catch_up()
        self._scan(piece.text)
        self._held.append(piece)
        self._held_size += len(piece.text)
        if piece.finish:
            return self._ended(piece.finish)
        # What began in text that was said already can't be taken back.
        waits = self._found or self._scanner.undecided_from >= self._size
        return () if waits else self._released()

    def close(self) -> Sequence[Piece]:
        """Release what is held, where the attempt ends without a finish reason: it was cut off."""
        return self._ended("error")

    def correction(self) -> Correct | None:
        """Nothing is ever corrected: what is no call is the model's answer."""
        return None

    def give_up(self) -> Sequence[Piece]:
        """There is nothing of that kind."""
        return ()

    def _catch_up(self) -> None:
        text, self._unread, self._unread_size = "".join(self._unread), [], 0
        if text:
            self._pass(text)
            self._scan(text)

    def _scan(self, text: str) -> None:
        for found in self._scanner.feed(text):
            self._sort(found)
        self.faults += self._scanner.unknown_tools()

    def _sort(self, found: Text | Call | Malformed) -> None:
        if not isinstance(found, Text):
            self._found.append(found)
            if found.place.at < self._size:
                self._shown()
        elif self._found and found.text:
            self._behind += found.text[: _TAIL + 1]
            if len(self._behind) > _TAIL or not _OVER.fullmatch(self._behind):
                self._shown()

    def _shown(self) -> None:
        """Count what was found as an example, or part of a text."""
        room = max(0, MOST_FAULTS - len(self.faults))
        self.faults += [replace(fault_of(each), reason=EXAMPLE_SHOWN) for each in self._found[:room]]
        self._found, self._behind, self._showing = [], "", True

    def _pass(self, text: str) -> None:
        self._before = (self._before + text[-_BEFORE:])[-_BEFORE:]
        self._size += len(text)

    def _released(self) -> Sequence[Piece]:
        held = self._drain()
        for piece in held:
            self._pass(piece.text)
        return held

    def _drain(self) -> list[Piece]:
        held, self._held, self._held_size = self._held, [], 0
        return held

    def _ended(self, finish: str | None) -> Sequence[Piece]:
        """The answer is over, by its end mark if there is no finish reason."""
        if self._over:
            return ()
        self._catch_up()
        self._over = True
        finished = finish not in UNFINISHED
        for last in self._scanner.close(cut=not finished):
            self._sort(last)
        self.faults += self._scanner.unknown_tools()
        found, self._found = self._found, []
        wrong = [each for each in found if isinstance(each, Malformed)]
        self.faults += map(fault_of, wrong)
        if not found or wrong or not finished:
            return self._released()
        calls = [each for each in found if isinstance(each, Call)]
        if not self._is_intended(calls):
            self._found = list(found)
            self._shown()
            return self._released()
        return self._called(calls, finish)

    def _is_intended(self, calls: Sequence[Call]) -> bool:
        """Return whether these can't be an example, by where the first of them stands."""
        place = calls[0].place
        text = "".join(piece.text for piece in self._held)
        before = (self._before + text[: place.at - self._size])[-_BEFORE:]
        if not (place.answered or self._showing):
            return True
        paragraph = before.rstrip().rpartition("\n\n")[2]
        if _SHOWS.search(paragraph):
            return False
        if all(call.form in _MARKED for call in calls):
            return before.endswith("\n") or bool(_SENTENCE_END.search(before))
        short = place.answered <= _ANNOUNCED and not self._showing and "\n\n" not in before.strip()
        return short and bool(_ANNOUNCES.search(paragraph))

    def _called(self, calls: Sequence[Call], finish: str | None) -> Sequence[Piece]:
        """Pieces that are held, with calls in place of the text from the first of them on."""
        held = self._drain()
        cut = calls[0].place.at - self._size
        sent: list[Piece] = []
        for piece in held:
            if not piece.text or cut >= len(piece.text):
                sent.append(piece)
            elif cut > 0 or (piece.role and piece is held[0]):
                sent.append(replace(piece.uncounted(), text=piece.text[: max(0, cut)], finish=None))
            cut -= len(piece.text)
        last = held[-1]
        if sent and sent[-1] is last:
            sent.pop()
        self.leaked += len(calls)
        sent.append(replace(last.blank(), calls=tuple(map(self._part, calls, range(len(calls))))))
        counts = {name: _latest(held, name) for name in ("usage", "prompt_tokens", "completion_tokens")}
        ends = None if finish is None else calls_finish(legacy=self._offer.legacy)
        return [*sent, replace(last.blank(), finish=ends, **counts)] if ends or any(counts.values()) else sent

    def _part(self, call: Call, index: int) -> CallPart:
        if self._offer.legacy:
            return CallPart(call.name, call.arguments, legacy=True)
        return CallPart(call.name, call.arguments, id=self._make_id(), index=index)


def _latest(pieces: Sequence[Piece], name: str) -> Any:
    """The newest of a count that pieces tell."""
    return next((value for piece in reversed(pieces) if (value := getattr(piece, name))), getattr(pieces[-1], name))
