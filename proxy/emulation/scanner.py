"""Calls in the text of an answer, found while it arrives.

Ordinary text is decided at once. Text that may begin a call stays undecided only as long as it may still be one: once it has a
tool's name or arguments, up to its end, where it is read in one go. Text in a `<think>` block, in inline code and in code blocks
of other languages is never a call, nor is a call of a tool that is not offered.

White space after a call is left out, unless text follows it that would run into the text before the call; so is white space at
the beginning of an answer that opens with a call. If an answer may hold only one call, later calls are left out, too.
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
"""Number of backticks from which they open a code block."""
_CONTEXT = 100
"""Characters before undecided text that are kept for the forms' look-behinds."""
_LONGEST = 262_144
"""Characters above which a call is text."""
# Each opening used to be tried by every form: a piece of 100 kB of brackets took a second on a busy machine.
_MOST_OPENINGS = 1_000
"""Possible openings that are examined in one piece; the rest of a piece with more of them is text. Each takes 10 µs."""
_LONGEST_OPENING = 512
"""Characters up to which a form's beginning may be incomplete at the end of the text; its white space is bounded."""
_MOST_UNKNOWN = 8
"""Calls of tools that are not offered that are kept for the owner's report."""


@dataclass(slots=True)
class _Reading:
    """State of reading a form after its beginning."""

    form: forms.CallForm
    start: int
    tool: str
    """Name of the first tool; empty if it comes after the arguments."""
    name: str = ""
    """Name before the newest body."""
    body_at: int = -1
    """Index at which the current body begins; -1 between bodies."""
    brackets: Brackets = field(default_factory=Brackets)
    bodies: list[forms.Body] = field(default_factory=list)

    def begin_body(self, name: str, at: int) -> None:
        """Expect another body."""
        self.name, self.body_at, self.brackets = name, at, Brackets()


class CallScanner:
    """Finds the calls in an answer. The result does not depend on how the text is cut into pieces."""

    def __init__(self, offer: Offer, text_before: str = "", *, calls_before: int = 0) -> None:
        """Begin after the text and the calls of earlier attempts, which are already decided."""
        self._offer = offer
        self._text = ""
        """Text from the first undecided character, preceded by some decided text as context."""
        self._base = 0
        """Characters of the answer before `_text`."""
        self._at = self._cursor = 0
        """Indices in `_text` of the first undecided character, and of the first unread one."""
        self._state: Callable[[], bool] = self._between
        """Current state of the scanner: reads on, and returns False if it needs more text."""
        self._closing: regex.Pattern[str] | None = None
        """Pattern of the end of the reasoning or code being read; None outside of these."""
        self._reading: _Reading | None = None
        self._ended = self._cut = False
        self._openings = self._calls = 0
        self.behind_call = False
        """Whether only white space and marks have followed the newest call so far."""
        self._failed = False
        """Whether the newest call cannot be made."""
        self._runs_on = False
        """Whether the text before the newest call does not end in white space."""
        self._spans: list[forms.CallSpan] = []
        self.faults: list[forms.CallFault] = []
        """Calls of tools that are not offered, up to a limit."""
        self.answered = 0
        """Characters of decided text, without reasoning."""
        self._resume(text_before)
        self._calls = calls_before

    @property
    def decided(self) -> int:
        """Number of characters of the answer that are certainly text, or part of a span."""
        return self._base + (len(self._text) if self._closing else self._at)

    @property
    def suspect_from(self) -> int:
        """Number of characters of the answer before any possible call; all of them if there is none."""
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
        """Read the next text of the answer; return the spans that are now certain, in order."""
        if self._reading is None:
            self._forget(self._at - _CONTEXT)
        self._text += text
        self._openings = 0
        return self._read()

    def close(self, *, cut: bool = False) -> list[forms.CallSpan]:
        """End the answer and return the remaining spans. `cut`: a token limit ended it, so no call is completed."""
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
        """Decide that everything before an index is text."""
        self.answered += 0 if thought else end - self._at
        self._at = self._cursor = end

    # -- text

    def _between(self) -> bool:
        """Read white space at the beginning, or white space and left-over marks after a call."""
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
        """Decide that white space is text, since text follows it."""
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
        """Read up to the end of reasoning, or of code that began with this number of `ticks`."""
        assert self._closing is not None
        found = self._closing.search(self._text, self._cursor, partial=not self._ended)
        if found is None:
            self._pass(len(self._text), thought=not ticks)
            return True
        self._pass(found.start() if found.partial else found.end(), thought=not ticks)
        if found.partial:
            return False
        if ticks >= _BLOCK and not found.group():
            # The line ended before the backticks were closed: it was the first line of a code block, not inline code.
            self._closing = regex.compile(rf"\n[ \t]{{0,3}}`{{{ticks},64}}[ \t]{{0,64}}(?=[\r\n])")
            self._state = partial(self._skip, 1)
        else:
            self._closing = None
            self._state = self._prose if ticks else self._between
            self._forget(0 if ticks else self._at)
        return True

    # -- calls

    def _open(self) -> bool | None:
        """Read the beginning of a call, of reasoning or of code; False if there is none, None if it is too early to know."""
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
        """Begin to read a form; False if its tool is not offered, None if it is too early to know that it is a call."""
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
        """Read a body up to its end, then the text after it: another body, the end of the form, or neither."""
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
        """Read on in a body; return whether its end was reached."""
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
        """Make the calls of a form: all of them, or none if one cannot be made."""
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
        """Decide that the form being read is text; if it was in a code block, go on inside that."""
        end, self._reading = self._cursor, None
        self._cursor = reading.start
        self._text_follows()
        if (ticks := _TICKS.match(self._text, self._at)) is not None:
            self._skip_from(ticks)
        else:
            self._pass(end)
            self._state = self._prose
