"""Calls in the text of an answer, found while it arrives.

Ordinary text goes on at once; what may be the beginning of a call is held only as long as it may still be one: up to its end
once it names a tool or has arguments, for then it is buffered, and understood in one go. Text in a `<think>` block, in inline
code and in code blocks of other languages is never a call, nor is a call of a tool that is not offered.

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
from collections.abc import Callable
from functools import partial

from proxy.emulation.arguments import CUT, Unreadable
from proxy.emulation.cursor import SPACE, Cursor, More, Words
from proxy.emulation.forms import FORMS
from proxy.emulation.forms.base import CallForm, RawCall, Reading
from proxy.emulation.forms.fenced import FENCE, FENCED
from proxy.emulation.nesting import Nesting
from proxy.emulation.offer import Offer
from proxy.emulation.scanned import NOWHERE, Call, Malformed, Scanned, Spot, Text, texts_joined

# Text up to the next character that may begin something, without the white space at its end.
_PROSE = re.compile(r"[^<\[{`]*[^<\[{`\s]")
_INLINE = re.compile(r"[^\n`]*+")
_LINE = re.compile(r"[^\n]*+\n?")
_LINE_BEGIN = re.compile(r"[ \t]{0,3}+`{0,64}+[ \t]{0,64}+")
_THOUGHT = re.compile(r"<?[^<]*+")
_SOME = 2048
"""Characters that may be put back without much ado."""
_TICKS = re.compile(r"`{1,64}+")
_THINKING = {"<think>": "</think>", "<thinking>": "</thinking>"}
_INDENTED = 3
"""Blanks that a line may begin with and still count as one (CommonMark: four make it code)."""
_OPENINGS = {opening: form for form in FORMS for opening in form.openings if form is not FENCED}
_LINE_OPENINGS = Words((*_OPENINGS, *_THINKING))
_OTHER_OPENINGS = Words((*(o for o, form in _OPENINGS.items() if not form.at_line_start), *_THINKING))
_NAMELESS = RawCall("", closed=False)
_STRANGER = re.compile(
    r"""\s*+<[a-z_]+=([\w.:/-]{1,64})>|\W*+(?:json\b\W*+)?\b(?:name|tool|tool_name|function)["']?\s*+[:=]\s*+["']([\w.:/-]{1,64})["']"""
    r"""|\s*+([\w.:/-]{1,64})(?:\[ARGS\]|[({])"""
)
"""The name of a tool behind the mark of a call."""
_LONGEST_STRANGER = 160
_MOST_STRANGERS = 8


class CallScanner:
    """Cuts an answer into text and calls. How the answer was cut into pieces changes nothing."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._input = Cursor()
        self._state: Callable[[], None] = self._prose
        """Reads on from the input, or raises `More`."""
        self._reading: Reading | None = None
        """The form that is read."""
        self._out: list[Scanned] = []
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
        self._pushed = 0
        """Characters that were fed."""
        self._said = 0
        """Characters of text that were handed out, but for thoughts."""
        self._place = NOWHERE
        """Of the form that is read."""
        self._odd: list[tuple[str, str]] = []
        """What stands behind marks that no call follows, with the name of the form."""
        self._looked = 0
        """Those of them whose names were looked for, and will not be again."""

    @property
    def undecided_from(self) -> int:
        """How many characters of the text stand before what may still become a call; -1: nothing may."""
        if self._reading is not None:
            return self._place.at
        waits = self._state == self._prose and self._input.at < len(self._input.text)
        return self._pushed - len(self._input.text) + self._input.at if waits else -1

    @property
    def said(self) -> int:
        """Characters of the answer that were handed out, but for thoughts."""
        return self._said

    def strangers(self) -> list[tuple[str, str]]:
        """Names of what was called since this was asked last, in marks that say so, and is no tool; not many.

        As the model wrote them, each with its form, once the name is there.
        """
        told: list[tuple[str, str]] = []
        for form, text in self._odd[self._looked :]:
            name = _STRANGER.match(text)
            if name is None and len(text) < _LONGEST_STRANGER and self._looked == len(self._odd) - 1:
                break  # it may still come
            self._looked += 1
            told += [] if name is None else [(next(filter(None, name.groups())), form)]
        return [(name, form) for name, form in told if name not in self._offer.tools]

    @property
    def held(self) -> str:
        """Text that came and was not handed out yet. Costs its length."""
        form = self._reading.done + self._reading.rest if self._reading else ""
        return ((self._before or "") + "".join(self._gap) + form + self._input.rest)[self._sent :]

    @property
    def held_size(self) -> int:
        """Characters of that text."""
        form = self._reading.size if self._reading else 0
        unread = len(self._input.text) - self._input.at
        return len(self._before or "") + sum(map(len, self._gap)) + form + unread - self._sent

    def resume(self, said: str, *, called: bool = False) -> None:
        """Go on behind a text that earlier attempts at the answer have sent, before anything is fed.

        None of it is handed out again, nor is a call or a stranger that it may hold; one that begins at its end is found.
        `called`: those attempts made a call, so that there is to be no other where one is allowed.
        """
        self.feed(said)
        self.strangers()
        self._called = called
        if self._before is not None:
            # White space behind a call that was sent as text: all of it was sent.
            self._before, self._gap = None, []
        self._sent = self.held_size

    def feed(self, text: str) -> list[Scanned]:
        """Take in the next text of the answer; what is certain now."""
        if not self._offer.callable:
            return [Text(text)] if text else []
        self._pushed += len(text)
        if self._odd and len(self._odd[-1][1]) < _LONGEST_STRANGER:
            form, behind = self._odd[-1]
            self._odd[-1] = form, behind + text[:_LONGEST_STRANGER]
        self._input.push(text)
        return self._read_on()

    def close(self, *, cut: bool = False) -> list[Scanned]:
        """End the answer; the rest. `cut` says that it ended for want of room, so that nothing unfinished is completed."""
        if self._input.ended:
            return []
        self._cut = cut
        self._input.ended = True
        found = self._read_on()
        if self._before is None and self._gap:
            self._say("")
        self._before, self._gap, self._sent = None, [], 0
        return texts_joined([*found, *self._out])

    def _read_on(self) -> list[Scanned]:
        start = self._input.at
        try:
            while self._input.at < len(self._input.text) or (self._reading and self._input.ended):
                start = self._input.at
                self._state()
        except More:
            self._input.at = start
        found, self._out = texts_joined(self._out), []
        return found

    def _prose(self) -> None:
        character = self._input.text[self._input.at]
        if character.isspace():
            self._space(self._input.now(SPACE))
        elif character == "`":
            self._ticks()
        elif character in "<[{":
            self._opening()
        else:
            self._say(self._input.now(_PROSE))

    # -- calls

    def _opening(self) -> None:
        """Something that may open a form: at most one of the openings can be meant."""
        at_line_start = self._indent is not None and self._indent <= _INDENTED
        openings = _LINE_OPENINGS if at_line_start else _OTHER_OPENINGS
        opening = self._input.word(openings)
        if opening in _THINKING:
            self._say(opening, thought=True)
            self._state = partial(self._thought, _THINKING[opening])
        elif opening in openings and not _OPENINGS[opening].at_line_start:
            self._open(_OPENINGS[opening], opening)
        elif at_line_start and opening[:1] in _OPENINGS:
            self._input.unread(opening)
            self._open(_OPENINGS[opening[0]], "")
        else:
            self._say(opening or self._input.take(1))

    def _open(self, form: CallForm, opening: str) -> None:
        unread = len(self._input.text) - self._input.at
        self._place = Spot(self._pushed - unread - len(opening), self._said)
        self._reading = Reading(form, self._offer.words, opening)
        self._state = partial(self._form, self._reading)

    def _form(self, reading: Reading) -> None:
        """Hand what comes to the form that was opened, until it is complete or turns out to be text."""
        complete = reading.read(self._input.take(_SOME))
        if complete is None:
            if not self._input.ended or self._input.rest:
                return
            complete = reading.read("", ended=True) or reading.give_up(cut=self._cut)
        self._reading, self._state = None, self._prose
        if complete:
            self._input.unread(reading.rest)
            self._settle(reading.form, reading.calls, reading.done)
        elif reading.form is FENCED:
            self._input.unread(reading.done[len(reading.opening) :] + reading.rest)
            self._say(reading.opening)
            self._state = partial(self._inline, len(reading.opening))
        else:
            self._input.unread(reading.rest)
            if reading.form.marked and len(self._odd) < _MOST_STRANGERS:
                mark = reading.opening if reading.opening.endswith("=") else ""
                behind = reading.done[len(reading.opening) :] + self._input.rest[:_LONGEST_STRANGER]
                self._odd.append((reading.form.name, mark + behind))
            self._say(reading.done)
            nesting = Nesting()
            nesting.take(reading.done)
            if reading.form.at_line_start and not nesting.over:
                self._state = partial(self._structure, nesting)

    def _settle(self, form: CallForm, found: list[RawCall], text: str) -> None:
        """Hand out the calls of a form: all of them, or none if one can't be made."""
        if self._called and not self._offer.parallel:
            self._separate()
            return
        written = found if self._offer.parallel else found[:1]
        try:
            # A form that the end cut off before its first name holds none.
            calls = [self._call(form, one) for one in written or (_NAMELESS,)]
        except Unreadable as wrong:
            # What was not understood may have to be shown after all, just as it was written.
            self._say("")
            text = self._unsent(text)
            self._out.append(Malformed(text, form.name, str(wrong), wrong.kind, wrong.tool, self._place))
            self._indent = 0
        else:
            self._called = True
            self._separate()
            self._out += calls

    def _call(self, form: CallForm, written: RawCall) -> Call:
        try:
            arguments = self._offer.read(written, cut=self._cut)
        except Unreadable as wrong:
            named = written.name in self._offer.callable and str(wrong) != CUT
            told = f"{written.name}: {wrong}" if named else str(wrong)
            raise Unreadable(told, wrong.kind, tool=written.name) from None
        return Call(written.name, arguments.text, form.name, arguments.repairs, self._place)

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

    def _say(self, text: str, *, thought: bool = False) -> None:
        """Hand out text, and the white space that was held before it."""
        self._said += 0 if thought else len(text)
        gap = "".join(self._gap)
        if self._before is not None:
            gap = (self._before or gap) if self._spoke else ""
        self._before, self._gap = None, []
        if unsent := self._unsent(gap + text):
            self._out.append(Text(unsent))
        if text:
            self._spoke = True
            self._indent = None
            if text[-1] in " \t\n" and (line := text.rstrip(" \t")).endswith("\n"):
                self._indent = len(text[len(line) :].expandtabs(4))

    def _unsent(self, text: str) -> str:
        """The text without what of it was sent already."""
        sent = min(self._sent, len(text))
        self._sent -= sent
        return text[sent:]

    def _structure(self, nesting: Nesting) -> None:
        """Hand out an object or an array as it comes: nothing inside of it is a call."""
        text = self._input.take(_SOME)
        inside = nesting.take(text)
        self._input.unread(text[inside:])
        said = text[:inside].rstrip()
        if said:
            self._say(said)
        self._space(text[len(said) : inside])
        if nesting.over:
            self._state = self._prose

    def _thought(self, closing: str) -> None:
        if self._input.literal(closing):
            self._say(closing, thought=True)
            self._indent = 0
            self._state = self._prose
        else:
            self._say(self._input.now(_THOUGHT), thought=True)

    def _ticks(self) -> None:
        """A run of backticks: a code block, which may hold calls, or inline code."""
        ticks = self._input.whole(_TICKS)
        if len(ticks) >= len(FENCE):
            self._open(FENCED, ticks)
        else:
            self._say(ticks)
            self._state = partial(self._inline, len(ticks))

    def _inline(self, ticks: int) -> None:
        """Inline code up to as many backticks on the same line; else it was the first line of a code block, or nothing."""
        following = self._input.peek()
        if following == "\n":
            self._state = partial(self._block, ticks) if ticks >= len(FENCE) else self._prose
        elif following == "`":
            found = self._input.whole(_TICKS)
            self._say(found)
            self._state = self._prose if len(found) == ticks else self._state
        else:
            self._say(self._input.now(_INLINE))

    def _block(self, ticks: int) -> None:
        """Code up to a line that holds nothing but as many backticks."""
        begin = self._input.whole(_LINE_BEGIN) if self._indent == 0 else ""
        if begin.count("`") >= ticks and self._input.peek() in ("", "\n", "\r"):
            self._say(begin)
            self._state = self._prose
        else:
            self._say(begin + self._input.now(_LINE))
