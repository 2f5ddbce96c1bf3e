"""Calls in the text of an answer, found while it arrives.

Ordinary text is decided at once; what may begin a call is undecided only as long as it may still be one: up to its end once it has
a tool's name or arguments, then it is read in one go. Text in a `<think>` block, in inline code and in code blocks of other languages
is never a call, nor is a call of a tool that is not offered.

White space behind a call is left out, but where text follows it that would run into the text before the call; so is white space at
the beginning of an answer that opens with a call. Where one answer may hold one call only, later calls are left out, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import regex

from proxy.emulation import forms
from proxy.emulation.offer import Offer
from proxy.emulation.values import CUT, INVALID, UNKNOWN_TOOL, Brackets, Unreadable

_SPACE = regex.compile(r"\s++")
_THINK = regex.compile(r"<(think(?:ing)?)>")
_TICKS = regex.compile(r"`{64}|`{1,63}+(?=[^`])")
_BLOCK = 3
"""Backticks from which on they open a code block."""
_CONTEXT = 100
"""Characters before undecided text that forms look back at."""
_LONGEST = 262_144
"""Characters of a call; a longer one is text."""
_MOST_OPENINGS = 1_000
"""Places of one piece that are looked at more closely; a piece with more of them is text from there on: each takes 10 µs."""
_LONGEST_OPENING = 512
"""Characters of what a form begins with; its white space is bounded."""
_MOST_UNKNOWN = 8
"""Calls of tools that are not offered that are counted."""


@dataclass(slots=True)
class _Reading:
    """A form behind its beginning."""

    form: forms.CallForm
    start: int
    tool: str
    """Name of the first tool; empty: it stands behind its arguments."""
    name: str = ""
    """Name before the newest body."""
    body_at: int = -1
    """Index at which the body begins that is being read; -1: none is."""
    brackets: Brackets = field(default_factory=Brackets)
    bodies: list[forms.Body] = field(default_factory=list)

    def begin_body(self, name: str, at: int) -> None:
        """Expect another body."""
        self.name, self.body_at, self.brackets = name, at, Brackets()


class CallScanner:
    """Finds the calls of an answer. The cuts between the pieces of its text change nothing."""

    def __init__(self, offer: Offer, text_before: str = "", *, calls_before: int = 0) -> None:
        """Begin behind the text and the calls of earlier attempts, which are decided."""
        self._offer = offer
        self._text = ""
        """Text from the first undecided character on, behind some that give it a context."""
        self._base = 0
        """Characters of the answer before it."""
        self._at = self._cursor = 0
        """Indices of the first undecided character, and of the first one that was not read."""
        self._state: Callable[[], bool] = self._between
        """Reads on; whether it could without more text."""
        self._closing: regex.Pattern[str] | None = None
        """End of the thought or code that is being read."""
        self._reading: _Reading | None = None
        self._ended = self._cut = False
        self._openings = self._calls = 0
        self.behind_call = False
        """Whether nothing but white space and marks stands behind the newest call."""
        self._failed = False
        """Whether that can't be made."""
        self._runs_on = False
        """Whether the text before the newest call does not end in white space."""
        self._spans: list[forms.CallSpan] = []
        self.faults: list[forms.CallFault] = []
        """Calls of tools that are not offered, not many."""
        self.answered = 0
        """Characters of decided text, without thoughts."""
        self._resume(text_before)
        self._calls = calls_before

    @property
    def decided(self) -> int:
        """Characters of the answer that are text for sure, or part of a span."""
        return self._base + (len(self._text) if self._closing else self._at)

    @property
    def suspect_from(self) -> int:
        """Characters of the answer before what may become a call: all of it if nothing may."""
        if self._closing:
            return self.decided
        return self._base + (self._cursor if self._reading is None else self._reading.start)

    def _resume(self, text: str) -> None:
        self.feed(text)
        self.faults, self.behind_call = [], False
        if self._reading is not None:
            self._reading, self._state = None, self._prose
        if self._closing is None:
            self._at = self._cursor = len(self._text)

    def feed(self, text: str) -> list[forms.CallSpan]:
        """Take in the next text of the answer; spans that are certain now, in order."""
        if self._reading is None:
            self._forget(self._at - _CONTEXT)
        self._text += text
        self._openings = 0
        return self._read()

    def close(self, *, cut: bool = False) -> list[forms.CallSpan]:
        """End the answer. `cut` says that it ended for want of room, so that nothing unfinished is completed."""
        self._ended, self._cut = True, cut
        found = self._read()
        if self.behind_call:
            self._leave_out(len(self._text))
        self._at = self._cursor = len(self._text)
        return [*found, *self._spans]

    def _read(self) -> list[forms.CallSpan]:
        while (self._cursor < len(self._text) or (self._ended and self._reading is not None)) and self._state():
            pass
        found, self._spans = self._spans, []
        return found

    def _forget(self, count: int) -> None:
        if count > 0:
            self._text = self._text[count:]
            self._base += count
            self._at -= count
            self._cursor -= count

    def _pass(self, end: int, *, thought: bool = False) -> None:
        """Decide that what comes before an index is text."""
        self.answered += 0 if thought else end - self._at
        self._at = self._cursor = end

    # -- text

    def _between(self) -> bool:
        """Read white space at the beginning, and what is left over behind a call."""
        skipped = forms.BEHIND_CALL if self.behind_call else _SPACE
        found = skipped.match(self._text, self._cursor, partial=True)
        if found is None or found.group().startswith("<"):
            opened = self._open()
            if opened is not False:
                return bool(opened)
        if found is not None and found.partial and not self._ended:
            return False
        if found is not None:
            self._cursor = found.end()
            if self.behind_call and not (self._runs_on and found.group().isspace()):
                self._leave_out(self._cursor)
            return True
        self._text_follows()
        self._pass(self._cursor + 1)
        self._state = self._prose
        return True

    def _text_follows(self) -> None:
        """Decide that white space is text, since text stands behind it."""
        self.behind_call = self._failed = False
        self._at = self._cursor

    def _leave_out(self, end: int) -> None:
        self._add_span(end, None if self._failed else ())

    def _add_span(self, end: int, found: tuple[forms.Call, ...] | forms.CallFault | None) -> None:
        if end > self._at:
            self._spans.append(forms.CallSpan(self._base + self._at, self._base + end, found, self.answered))
        self._at = end

    def _prose(self) -> bool:
        found = forms.OPENINGS.search(self._text, self._cursor) if self._openings < _MOST_OPENINGS else None
        if found is None:  # perhaps one begins at the end
            end = max(self._cursor, len(self._text) - _LONGEST_OPENING)
            found = forms.OPENINGS.search(self._text, end, partial=True)
        self._pass(len(self._text) if found is None else found.start())
        if self._at == len(self._text):
            return True
        opened = self._open()
        if opened is False:
            self._pass(self._at + 1)
        return opened is not None

    def _skip(self, ticks: int = 0) -> bool:
        """Read a thought up to its end, or code behind so many backticks."""
        assert self._closing is not None
        found = self._closing.search(self._text, self._cursor, partial=not self._ended)
        if found is None:
            self._pass(len(self._text), thought=not ticks)
            return True
        self._pass(found.start() if found.partial else found.end(), thought=not ticks)
        if found.partial:
            return False
        if ticks >= _BLOCK and not found.group():
            # What looked like inline code was the first line of a code block.
            self._closing = regex.compile(rf"\n[ \t]{{0,3}}`{{{ticks},64}}[ \t]{{0,64}}(?=[\r\n])")
            self._state = partial(self._skip, 1)
        else:
            self._closing = None
            self._state = self._prose if ticks else self._between
            self._forget(0 if ticks else self._at)
        return True

    # -- calls

    def _open(self) -> bool | None:
        """Read the beginning of a call, a thought or code; False: there is none, None: too early to know."""
        self._openings += 1
        if self._openings > _MOST_OPENINGS:
            return False
        opened = self._open_form()
        return self._open_skipped() if opened is False else opened

    def _open_form(self) -> bool | None:
        for form in forms.BY_CHARACTER.get(self._text[self._cursor], ()):
            found = form.begin.match(self._text, self._cursor, partial=True)
            if found is None:
                continue
            if not found.partial:
                return self._begin(form, found)
            if not self._ended:
                return None
            if self._cut and form.marked and form.mark.match(self._text, self._cursor):
                self._reading = _Reading(form, self._cursor, "")
                self._cursor = len(self._text)
                self._fail(self._reading, Unreadable(CUT))
                return True
        return False

    def _open_skipped(self) -> bool | None:
        for opening in (_THINK, _TICKS):
            found = opening.match(self._text, self._cursor, partial=not self._ended)
            if found is not None and found.partial:
                return None
            if found is not None:
                self._text_follows()
                self._skip_from(found)
                return True
        return False

    def _skip_from(self, opening: regex.Match[str]) -> None:
        ticks = 0 if opening.re is _THINK else len(opening.group())
        self._pass(opening.end(), thought=not ticks)
        self._closing = regex.compile(rf"(?<!`)`{{{ticks}}}(?=[^`])|(?=\n)" if ticks else f"</{opening[1]}>")
        self._state = partial(self._skip, ticks)

    def _begin(self, form: forms.CallForm, found: regex.Match[str]) -> bool | None:
        """Begin to read a form; whether its tool is offered, None: too early to know that it is a call."""
        groups = found.groupdict()
        name = groups.get("name") or ""
        tool = name or groups.get("tool") or ""
        if tool and tool not in self._offer.callable:
            fenced = form.name == "fenced"
            more = forms.ARGUMENTS.match(self._text, found.end(), partial=True) if fenced else None
            if more is not None and more.partial and not self._ended:
                return None
            is_call = form.marked or (more is not None and not more.partial)
            if is_call and forms.TOOL_NAME.fullmatch(tool) and len(self.faults) < _MOST_UNKNOWN:
                self.faults.append(forms.fault(UNKNOWN_TOOL, tool, form.name))
            return False
        self._reading = _Reading(form, self._cursor, tool)
        self._cursor = found.start("value") if groups.get("value") else found.end()
        self._reading.begin_body(name, self._cursor)
        self._state = self._follow
        return True

    def _follow(self) -> bool:
        """Read a body up to its end, then what stands behind it: another one, the end of the form, or neither."""
        reading = self._reading
        assert reading is not None
        form = reading.form
        if reading.body_at >= 0 and not self._follow_body(reading):
            return False
        more = form.more and form.more.match(self._text, self._cursor, partial=True)
        if more and more.partial:
            if not self._ended:
                return False
            more = None
        if more and len(reading.bodies) <= forms.MOST_CALLS:
            self._cursor = more.end()
            reading.begin_body(more.groupdict().get("name") or "", self._cursor)
            return True
        if form.end is not None:
            found = form.end.match(self._text, self._cursor, partial=True)
            if found is not None and found.partial and not self._ended:
                return False
            if found is None and not (self._ended and self._cursor == len(self._text)):
                self._reject(reading)
                return True
            self._cursor = self._cursor if found is None else found.end()
        self._settle(reading)
        return True

    def _follow_body(self, reading: _Reading) -> bool:
        """Read on in a body; whether that has come to its end."""
        if reading.form.closing is None:
            self._cursor = reading.brackets.follow(self._text, self._cursor)
            over, closed = reading.brackets.over, reading.brackets.closed
        else:
            found = reading.form.closing.search(self._text, self._cursor, partial=not self._ended)
            over = closed = found is not None and not found.partial
            self._cursor = len(self._text) if found is None else found.end() if over else found.start()
        if not over and not self._ended:
            if self._cursor - reading.start > _LONGEST:
                self._reject(reading)
            return False
        self._cursor = self._cursor if over else len(self._text)
        reading.bodies.append(forms.Body(reading.name, self._text[reading.body_at : self._cursor], over, closed))
        reading.body_at = -1
        return True

    def _settle(self, reading: _Reading) -> None:
        """Find the calls of a form: all of them, or none if one can't be made."""
        form, single = reading.form, not self._offer.parallel
        surplus = single and self._calls > 0
        try:
            found = forms.calls_of(form, reading.bodies, self._offer.callable, cut=self._cut)
            if found is None or self._calls + len(found) > forms.MOST_CALLS:
                self._reject(reading)
                return
            calls = () if surplus else tuple(self._call(form, each) for each in (found[:1] if single else found))
        except Unreadable as wrong:
            if wrong.kind == CUT and not self._cut and reading.bodies[-1].is_broken:
                wrong = Unreadable(INVALID, tool=wrong.tool)
            quoted = wrong.kind != CUT and self._offer.quotes(self._text[reading.start : self._cursor])
            if quoted or not (reading.tool or form.marked):
                self._reject(reading)
                return
            if not surplus:
                wrong.tool = wrong.tool or reading.tool
                self._fail(reading, wrong)
                return
            calls = ()
        if self._offer.quotes(self._text[reading.start : self._cursor], calls):
            self._reject(reading)
            return
        self._calls += max(1, len(calls))
        self._end_form(reading, calls)

    def _call(self, form: forms.CallForm, written: forms.Written) -> forms.Call:
        try:
            arguments, repaired = self._offer.read(written)
        except Unreadable as wrong:
            wrong.tool = written.name
            raise
        return forms.Call(written.name, arguments, form.name, repaired)

    def _end_form(self, reading: _Reading, found: tuple[forms.Call, ...] | forms.CallFault) -> None:
        if not self.behind_call:
            before = self._text[self._at - 1 : self._at]
            self._runs_on = bool(before) and not before.isspace()
        end = self._cursor
        self._leave_out(reading.start)
        self._add_span(end, found)
        self._forget(self._at)
        self._failed = isinstance(found, forms.CallFault)
        self._reading, self.behind_call, self._state = None, True, self._between

    def _fail(self, reading: _Reading, wrong: Unreadable) -> None:
        message = f"{wrong.tool}: {wrong}" if wrong.tool in self._offer.callable and wrong.kind != CUT else str(wrong)
        self._end_form(reading, forms.fault(wrong.kind, wrong.tool, reading.form.name, message))

    def _reject(self, reading: _Reading) -> None:
        """Decide that what looked like a call is text; a code block is still one."""
        end, self._reading = self._cursor, None
        self._cursor = reading.start
        self._text_follows()
        if (ticks := _TICKS.match(self._text, self._at)) is not None:
            self._skip_from(ticks)
        else:
            self._pass(end)
            self._state = self._prose
