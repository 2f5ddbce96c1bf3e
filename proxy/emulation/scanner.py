"""Calls in the text of an answer, found while it arrives.

Ordinary text goes on at once; what may be the beginning of a call is held only as long as it may still be one. Text in a
`<think>` block, in inline code and in code blocks of other languages is never a call, nor is a call of a tool that is not offered.

White space before a call is held back too. It is sent when text follows the call, so that the texts stay apart, and left out if
none does; white space behind a call is left out, but where there was none before it. So of an answer that holds nothing
but calls no text remains.

Where one answer may hold one call only, later calls are left out; text around them stays. An object or an array at the beginning
of a line that turns out to be no call is text up to its end, whatever it holds.

An answer that comes in several attempts is read on by `resume`: the same calls are found, and the same text is handed out, as
if it had come in one. Only what was sent already can't be taken back: white space before a call, or the beginning of its mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from proxy.emulation.arguments import CUT, Unreadable
from proxy.emulation.forms import FORMS
from proxy.emulation.forms.base import Form, Found, Words, Written
from proxy.emulation.nesting import Nesting
from proxy.emulation.offer import Offer
from proxy.emulation.reader import SPACE, Reader, Step


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made."""

    name: str
    arguments: str
    """JSON text of an object."""
    form: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Malformed:
    """What was meant to be one or several calls, and can't be made."""

    text: str
    form: str
    reason: str
    """For the model; it may quote what the model wrote. `cut` if the answer ended in the middle of it."""


Piece: TypeAlias = Text | Call | Malformed


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with texts that follow each other as one."""
    done: list[Piece] = []
    for is_text, group in groupby(pieces, key=lambda piece: isinstance(piece, Text)):
        if is_text:
            done.append(Text("".join(piece.text for piece in group if isinstance(piece, Text))))
        else:
            done += group
    return done


# Text up to the next character that may begin something, without the white space at its end.
_PROSE = re.compile(r"[^<\[{`]*[^<\[{`\s]")
_TICKS = re.compile(r"`*")
_LINE = re.compile(r"[^\n`]*")
_WHOLE_LINE = re.compile(r"[^\n]*")
_BLANKS = re.compile(r"[ \t]*")
_THOUGHT = re.compile(r"[^<]*")
_WORDS = re.compile(r"\S+")
_THINKING = {"<think>": "</think>", "<thinking>": "</thinking>"}
_FENCE = 3
"""Backticks that a code block begins with, at least."""
_INDENTED = 3
"""Blanks that a line may begin with and still count as one (CommonMark: four make it code)."""
_OPENINGS = {opening: form for form in FORMS for opening in form.openings}
_LINE_OPENINGS = Words(o for o in (*_OPENINGS, *_THINKING) if not o.startswith("`"))
_OTHER_OPENINGS = Words(
    o for o in (*_OPENINGS, *_THINKING) if o in _THINKING or (not _OPENINGS[o].at_line_start and o[0] != "`")
)
_NAMELESS = Written("", closed=False)
_FENCED = next(form for opening, form in _OPENINGS.items() if opening.startswith("`"))


class CallScanner:
    """Cuts an answer into text and calls. How the answer was cut into pieces changes nothing."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._reader = Reader()
        self._out: list[Piece] = []
        self._gap: list[str] = []
        """White space since the last text or call."""
        self._before: str | None = None
        """White space before the first call since the last text; None if there was no call."""
        self._spoke = False
        self._called = False
        self._indent: int | None = 0
        """Blanks on this line, if there is nothing else on it yet."""
        self._cut = False
        self._sent = 0
        """Characters at the beginning of what is held that were sent already, by an earlier attempt."""
        self._scan = self._answer()

    @property
    def held(self) -> str:
        """Text that came and was not handed out yet. Costs its length."""
        return ((self._before or "") + "".join(self._gap) + self._reader.kept)[self._sent :]

    @property
    def held_size(self) -> int:
        """Characters of that text."""
        return len(self._before or "") + sum(map(len, self._gap)) + self._reader.size - self._sent

    def resume(self, said: str, *, called: bool = False) -> None:
        """Go on behind a text that earlier attempts at the answer have sent, before anything is fed.

        None of it is handed out again, nor is a call that it may hold; one that begins at its end is found. `called`: those
        attempts made a call, so that there is to be no other where one is allowed.
        """
        self.feed(said)
        self._called = called
        if self._before is not None:
            # White space behind a call that was sent as text: all of it was sent.
            self._before, self._gap = None, []
        self._sent = self.held_size

    def feed(self, text: str) -> list[Piece]:
        """Take in the next text of the answer; what is certain now."""
        if not self._offer.callable:
            return [Text(text)] if text else []
        if text:
            self._reader.push(text)
            next(self._scan)
        return self._taken()

    def close(self, *, cut: bool = False) -> list[Piece]:
        """End the answer; the rest. `cut` says that it ended for want of room, so that nothing unfinished is completed."""
        if self._reader.ended:
            return []
        self._cut = cut
        self._reader.ended = True
        next(self._scan, None)
        if self._before is None and self._gap:
            self._say("")
        self._before, self._gap, self._sent = None, [], 0
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._out = joined(self._out), []
        return pieces

    # -- reading

    def _answer(self) -> Step[None]:
        reader = self._reader
        while character := (yield from reader.peek()):
            if character.isspace():
                self._space(reader.now(SPACE))
            elif character == "`":
                yield from self._ticks()
            elif character in "<[{":
                yield from self._opening()
            else:
                self._say(reader.now(_PROSE))

    def _opening(self) -> Step[None]:
        """Something that may open a form: at most one of the openings can be meant."""
        reader = self._reader
        at_line_start = self._indent is not None and self._indent <= _INDENTED
        openings = _LINE_OPENINGS if at_line_start else _OTHER_OPENINGS
        reader.mark()
        opening = ""
        while (character := (yield from reader.peek())) and openings.may_become(opening + character):
            opening += character
            reader.skip()
        if opening in _THINKING:
            self._say(reader.release())
            yield from self._thought(_THINKING[opening])
        elif opening in openings:
            yield from self._form(_OPENINGS[opening])
        else:
            if not opening:
                reader.skip()
            text = reader.release()
            self._reject(text)
            if at_line_start and text[0] in "{[":
                yield from self._structure(text)

    def _form(self, form: Form) -> Step[bool]:
        """Read on behind an opening, which is marked. False if it is text, which is said then, but for a fence."""
        reader = self._reader
        found = yield from form.read(reader, self._offer.words)
        text = reader.release()
        if found is None or (not found.calls and not self._cut):
            if form is _FENCED:
                reader.unread(text)
            else:
                self._reject(text)
            if form.at_line_start:
                yield from self._structure(text)
            return False
        if found.rest:
            reader.unread(found.rest)
            text = text[: -len(found.rest)]
        self._settle(form, found, text)
        return True

    def _settle(self, form: Form, found: Found, text: str) -> None:
        """Hand out the calls of a form: all of them, or none if one can't be made."""
        if self._called and not self._offer.parallel:
            self._separate()
            return
        written = found.calls if self._offer.parallel else found.calls[:1]
        try:
            # A form that the end cut off before its first name holds none.
            calls = [self._call(form, one, text) for one in written or (_NAMELESS,)]
        except Unreadable as wrong:
            # What was not understood may have to be shown after all, just as it was written.
            self._say("")
            self._out.append(Malformed(self._unsent(text), form.name, str(wrong)))
            self._indent = 0
        else:
            self._called = True
            self._separate()
            self._out += calls

    def _call(self, form: Form, written: Written, text: str) -> Call:
        try:
            arguments = self._offer.read(written, text, cut=self._cut)
        except Unreadable as wrong:
            named = written.name in self._offer.callable and str(wrong) != CUT
            raise Unreadable(f"{written.name}: {wrong}" if named else str(wrong)) from None
        return Call(written.name, arguments.text, form.name, arguments.repairs)

    def _separate(self) -> None:
        if self._before is None:
            self._before, self._gap = "".join(self._gap), []
        # What was sent of the call itself stays where it is; white space before an answer's first text is left out.
        self._sent = min(self._sent, len(self._before)) if self._spoke else 0
        self._indent = 0

    # -- what is no call

    def _space(self, text: str) -> None:
        self._gap.append(text)
        line = text.rfind("\n")
        if line >= 0:
            self._indent = 0
        if self._indent is not None:
            self._indent += len(text[line + 1 :].expandtabs(4))

    def _say(self, text: str) -> None:
        """Hand out text, and the white space that was held before it."""
        gap = "".join(self._gap)
        if self._before is not None:
            gap = (self._before or gap) if self._spoke else ""
        self._before, self._gap = None, []
        if unsent := self._unsent(gap + text):
            self._out.append(Text(unsent))
        if text:
            self._spoke = True
            self._indent = None

    def _unsent(self, text: str) -> str:
        """The text without what of it was sent already."""
        sent = min(self._sent, len(text))
        self._sent -= sent
        return text[sent:]

    def _structure(self, begun: str) -> Step[None]:
        """Hand out the rest of an object or an array as it comes: nothing inside of it is a call."""
        reader, nesting = self._reader, Nesting()
        nesting.take(begun)
        while not nesting.over and (character := (yield from reader.peek())):
            if character.isspace():
                space = reader.now(SPACE)
                nesting.take(space)
                self._space(space)
                continue
            words = reader.now(_WORDS)
            inside = nesting.take(words)
            if inside < len(words):
                reader.unread(words[inside:])
            self._pass(words[:inside])

    def _reject(self, text: str) -> None:
        """Hand out what was held and is no call after all."""
        self._say(text)
        line = text.rfind("\n") + 1
        if line and not text[line:].strip(" \t"):
            self._indent = len(text[line:].expandtabs(4))

    def _pass(self, text: str) -> None:
        """Hand out text that is no prose, white space and all."""
        if text:
            self._say(text)

    def _thought(self, closing: str) -> Step[None]:
        reader = self._reader
        while True:
            reader.mark()
            closed = yield from reader.literal(closing)
            self._pass(reader.release())
            if closed:
                self._indent = 0
            if closed or not (yield from reader.peek()):
                return
            self._pass(reader.now(_THOUGHT))

    def _ticks(self) -> Step[None]:
        """A run of backticks: a code block, which may hold calls, or inline code."""
        reader = self._reader
        reader.mark()
        yield from reader.run(_TICKS)
        ticks = reader.offset
        if ticks >= _FENCE:
            if (yield from self._form(_FENCED)):
                return
            self._pass(reader.now(_TICKS))
        else:
            self._pass(reader.release())
        yield from self._inline(ticks)

    def _inline(self, ticks: int) -> Step[None]:
        """Inline code up to as many backticks on the same line; else it was the first line of a code block, or nothing."""
        reader = self._reader
        while (character := (yield from reader.peek())) not in ("", "\n"):
            if character != "`":
                self._pass(reader.now(_LINE))
                continue
            reader.mark()
            yield from reader.run(_TICKS)
            closed = reader.offset == ticks
            self._pass(reader.release())
            if closed:
                return
        if ticks >= _FENCE:
            yield from self._block(ticks)

    def _block(self, ticks: int) -> Step[None]:
        """Lines of code up to one of nothing but as many backticks."""
        reader = self._reader
        while (yield from reader.peek()):
            self._pass(reader.now(_WHOLE_LINE))
            if (yield from reader.peek()) != "\n":
                continue
            reader.skip()
            self._pass("\n")
            reader.mark()
            yield from reader.run(_BLANKS)
            indent = reader.offset
            yield from reader.run(_TICKS)
            closes = indent <= _INDENTED and reader.offset - indent >= ticks
            following = yield from reader.run(_BLANKS)
            self._pass(reader.release())
            if closes and following in ("", "\n", "\r"):
                return
