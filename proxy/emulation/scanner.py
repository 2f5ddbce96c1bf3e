"""Calls in the text of an answer, found while it arrives.

Ordinary text goes on at once; what may begin a call is held only as long as it may still be one: up to its end once it has a tool's
name or arguments, then it is read in one go. Text in a `<think>` block, in inline code and in code blocks of other languages is
never a call, nor is a call of a tool that is not offered. An object or an array at the beginning of a line that is no call is text
up to its end, whatever it holds.

White space before a call is held back too. It is sent when text follows the call, so that the texts stay apart, and dropped if none
does; white space behind a call is dropped, but where there was none before it. So an answer of nothing but calls has no text.
Where one answer may hold one call only, later calls are dropped, too.

An answer that comes in several attempts goes on by `resume`: the same calls are found, and the same text is handed out, as if it had
come in one. Only what was sent already can't be taken back: white space before a call, or the beginning of its mark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import regex
from typing_extensions import override

from proxy.emulation.calls import TOOL_NAME, Call, CallFault, Malformed, Scanned, Spot, Text, fault, texts_joined
from proxy.emulation.forms import BY_CHARACTER, CLOSERS, MARKS, Body, CallForm, Written, calls_of
from proxy.emulation.offer import Offer
from proxy.emulation.repair import CUT, UNKNOWN_TOOL, Brackets, Unreadable, Until
from proxy.emulation.text import TICKS, TextScanner

_THINK = regex.compile(r"<(think(?:ing)?)>")
_INDENTED = 3
"""Blanks that a line may begin with and still count as one (CommonMark: four make it code)."""
_LONGEST = 1_000_000
"""Characters of a call that are buffered; a longer one is text."""
_MOST_UNKNOWN = 8


@dataclass(slots=True)
class _Reading:
    """A form behind its beginning."""

    form: CallForm
    place: Spot
    tool: str
    """Name of the first tool; empty: it stands behind its arguments."""
    follower: Brackets | Until
    body: Body
    parts: list[str] = field(default_factory=list)
    """Text of it that was consumed."""
    size: int = 0
    body_at: int = 1
    """Index of the first part of the newest body."""
    bodies: list[Body] = field(default_factory=list)
    ended: bool = False
    """Whether its end was there."""


class CallScanner(TextScanner):
    """Cuts an answer into text and calls. The cuts between pieces change nothing."""

    def __init__(self, offer: Offer) -> None:
        super().__init__()
        self._offer = offer
        self._cut = self._called = False
        self._reading: _Reading | None = None
        self._pushed = 0
        """Characters that were fed."""
        self._unknown: list[CallFault] = []
        self._strangers = 0

    @property
    def undecided_from(self) -> int:
        """Characters of the text before what may still become a call; -1: nothing may."""
        if self._reading is not None:
            return self._reading.place.at
        waits = self._state == self._prose and self._at < len(self._text)
        return self._pushed - len(self._text) + self._at if waits else -1

    def unknown_tools(self) -> list[CallFault]:
        """Calls of tools that are not offered, since the last time; not many."""
        new, self._unknown = self._unknown, []
        return new

    @property
    def held(self) -> str:
        """Text that came and was not handed out yet. Costs its length."""
        form = "".join(self._reading.parts) if self._reading else ""
        return ((self._before or "") + "".join(self._gap) + form + self._text[self._at :])[self._sent :]

    @property
    def held_size(self) -> int:
        """Characters of that text."""
        form = self._reading.size if self._reading else 0
        unread = len(self._text) - self._at
        return len(self._before or "") + sum(map(len, self._gap)) + form + unread - self._sent

    def resume(self, text: str, *, called: bool = False) -> None:
        """Go on behind the text that earlier attempts have sent, before anything is fed.

        None of it is handed out again, nor is a call that it may hold; one that begins at its end is found. `called`: those
        attempts made a call, so that there is to be no other where one is allowed.
        """
        self.feed(text)
        self._unknown.clear()
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
        self._text, self._at = self._text[self._at :] + text, 0
        return self._read_on()

    def close(self, *, cut: bool = False) -> list[Scanned]:
        """End the answer; the rest. `cut` says that it ended for want of room, so that nothing unfinished is completed."""
        if self._ended:
            return []
        self._ended, self._cut = True, cut
        found = self._read_on()
        if self._before is None and self._gap:
            self._say("")
        self._before, self._gap, self._sent = None, [], 0
        return texts_joined([*found, *self._out])

    def _read_on(self) -> list[Scanned]:
        while (self._at < len(self._text) or (self._reading and self._ended)) and self._state():
            pass
        found, self._out = texts_joined(self._out), []
        return found

    # -- calls

    @override
    def _opening(self, character: str) -> bool:
        for pattern in (_THINK, CLOSERS) if character == "<" else ():
            found = pattern.match(self._text, self._at, partial=True)
            if found is None or (pattern is CLOSERS and self._before is None):
                continue
            if found.partial and not self._ended:
                return False
            if pattern is CLOSERS:
                self._take(found.end())  # left over behind a call
                return True
            if not found.partial:
                self._say(self._take(found.end()), thought=True)
                self._state = partial(self._thought, f"</{found[1]}>")
                return True
        line = self._indent is not None and self._indent <= _INDENTED
        started = self._begin([form for form in BY_CHARACTER[character] if line or not form.line])
        if started is False and line and character != "<":
            self._state = partial(self._structure, Brackets(strict=True))
        elif started is False:
            self._say(self._take(self._at + 1))
        return started is not None

    @override
    def _fence(self) -> bool | None:
        return self._begin(BY_CHARACTER["`"])

    def _begin(self, forms: list[CallForm]) -> bool | None:
        """Begin the form that opens here; False: none does, None: too early to know."""
        if MARKS.match(self._text, self._at, partial=True) is None:
            return False
        for form in forms:
            found = form.begin.match(self._text, self._at, partial=True)
            if found is None:
                continue
            if found.partial and not self._ended:
                return None
            unread = len(self._text) - self._at
            place = Spot(self._pushed - unread, self.answered)
            if found.partial:
                if self._cut and form.marked and form.mark.match(self._text, self._at):
                    self._fail(form, place, self._take(len(self._text)), Unreadable(CUT))
                    return True
                continue
            groups = found.groupdict()
            tool = groups.get("name") or groups.get("tool") or ""
            if tool and tool not in self._offer.callable:
                if form.marked and TOOL_NAME.fullmatch(tool) and self._strangers < _MOST_UNKNOWN:
                    self._strangers += 1
                    self._unknown.append(fault(UNKNOWN_TOOL, tool, form.name))
                return False
            start = found.start("value") if groups.get("value") else found.end()
            follower, body = _body(form, groups)
            self._reading = reading = _Reading(form, place, tool, follower, body)
            reading.parts.append(self._take(start))
            reading.size = len(reading.parts[0])
            self._state = partial(self._body, reading)
            if self._text.startswith("</", start) and body.key is None:
                reading.bodies.append(body)  # without parameters
                self._state = partial(self._tail, reading)
            return True
        return False

    def _body(self, reading: _Reading) -> bool:
        follower = reading.follower
        text = self._take(follower.take(self._text, self._at))
        reading.parts.append(text)
        reading.size += len(text)
        if reading.size > _LONGEST:
            self._reject(reading)
        elif follower.over or self._ended:
            body = "".join(reading.parts[reading.body_at :])
            closed = isinstance(follower, Until) or follower.closed
            reading.bodies.append(reading.body._replace(text=body, over=follower.over, closed=closed))
            self._state = partial(self._tail, reading)
        return True

    def _tail(self, reading: _Reading) -> bool:
        """Read what stands behind a body: another one, the end of the form, or neither."""
        form = reading.form
        for pattern in (form.more, form.end):
            found = pattern.match(self._text, self._at, partial=True)
            if found is None:
                continue
            if found.partial and not self._ended:
                return False
            if found.partial and pattern is form.more:
                continue
            text = self._take(found.end())
            reading.parts.append(text)
            reading.size += len(text)
            if pattern is form.more:
                groups = found.groupdict()
                reading.follower, reading.body = _body(form, groups, reading.body.name if "key" in groups else "")
                reading.body_at = len(reading.parts)
                self._state = partial(self._body, reading)
                return True
            reading.ended = not found.partial
            self._settle(reading)
            return True
        if form.open_end or (self._ended and self._at == len(self._text)):
            self._settle(reading)
        else:
            self._reject(reading)
        return True

    def _settle(self, reading: _Reading) -> None:
        """Hand out the calls of a form: all of them, or none if one can't be made."""
        form, tools = reading.form, self._offer.callable
        self._reading, self._state = None, self._prose
        single = not self._offer.parallel
        try:
            found = calls_of(form, reading.bodies, tools, cut=self._cut and not reading.ended)
            if found is None:
                self._reject(reading)
                return
            written_calls = [] if single and self._called else found[:1] if single else found
            calls = [self._call(form, written, reading.place) for written in written_calls]
        except Unreadable as wrong:
            if single and self._called:
                self._separate()
            elif not (reading.tool or form.marked):
                self._reject(reading)
            else:
                wrong.tool = wrong.tool or reading.tool
                self._fail(form, reading.place, "".join(reading.parts), wrong)
        else:
            self._called = True
            self._separate()
            self._out += calls

    def _call(self, form: CallForm, written: Written, place: Spot) -> Call:
        try:
            arguments, repaired = self._offer.read(written)
        except Unreadable as wrong:
            wrong.tool = written.name
            raise
        return Call(written.name, arguments, form.name, repaired, place)

    def _fail(self, form: CallForm, place: Spot, text: str, wrong: Unreadable) -> None:
        reason = str(wrong)
        if wrong.tool in self._offer.callable and reason != CUT:
            reason = f"{wrong.tool}: {reason}"
        # Text that was not understood may have to be shown after all, just as it was written.
        self._say("")
        self._out.append(Malformed(self._unsent(text), form.name, reason, wrong.kind, wrong.tool, place))
        self._indent = 0

    def _reject(self, reading: _Reading) -> None:
        """Hand out as text what turned out to be no call."""
        text = "".join(reading.parts)
        self._reading, self._state = None, self._prose
        if reading.parts[0].startswith("`"):
            self._text, self._at = text + self._text[self._at :], 0
            self._code(self._match(TICKS))
            return
        self._say(text)
        if reading.form.line:
            brackets = Brackets(strict=True)
            brackets.take(text)
            if not brackets.over:
                self._state = partial(self._structure, brackets)


def _body(form: CallForm, groups: dict[str, str | None], name: str = "") -> tuple[Brackets | Until, Body]:
    """A body that begins, and what finds its end."""
    key = groups.get("key")
    return Brackets() if key is None else Until(form.value_end), Body(groups.get("name") or name, key, "")
