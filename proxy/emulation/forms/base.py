"""What every form of a written call is made of, and how it is read: buffered up to its close, then understood in one go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from proxy.emulation.cursor import Cursor, More, MoreThanSpace, Words


@dataclass(slots=True)
class RawCall:
    """One call as it was written: not yet read by what its tool asks for."""

    name: str
    arguments: str | None = None
    """Their JSON; None if none were given."""
    parameters: list[tuple[str, str]] | None = None
    """In forms that write each parameter on its own: name and value, which is bare text."""
    closed: bool = True
    """Whether all of its brackets and tags that hold data were closed."""
    repairs: tuple[str, ...] = ()
    broken: bool = False
    """Whether it is not built like JSON."""
    misplaced: bool = False
    """Whether it has no arguments, and something that may have been meant as such."""


class Follower(Protocol):
    """Finds the end of a text while it arrives."""

    over: bool

    def take(self, text: str, start: int = 0) -> int:
        """How many characters of the next text belong to it."""
        ...


class Until:
    """Follows a text up to a mark, which belongs to it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._tail = ""
        self.over = False

    def take(self, text: str, start: int = 0) -> int:
        """How many characters of the next text belong to it."""
        text = text[start:]
        window = self._tail + text
        at = window.find(self._mark)
        self.over = at >= 0
        if self.over:
            return at + len(self._mark) - len(self._tail)
        self._tail = window[1 - len(self._mark) :]
        return len(text)


@dataclass(slots=True)
class Body:
    """What comes next in a form, as long as it likes."""

    follower: Follower
    """Finds its end while it arrives."""
    use: Callable[[str], bool]
    """Takes in its text, at whose end the follower knows whether it was closed; False if it can't be part of a call."""
    then: Step
    """What stands behind it."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way in which models write calls."""

    name: str
    openings: tuple[str, ...]
    """Texts that it may begin with; in none its first character comes again."""
    begin: Step
    """Reads on behind an opening."""
    marked: bool = True
    """Whether an opening alone says that a call is meant."""
    at_line_start: bool = False
    """Whether it counts only there, behind at most three blanks. Its opening is then the beginning of its first body."""


@dataclass(slots=True)
class Reading:
    """A form from its opening on: complete, none after all, or not known yet. How the text was cut changes nothing."""

    form: CallForm
    names: Words
    """Of the tools."""
    opening: str
    calls: list[RawCall] = field(default_factory=list)
    size: int = 0
    """Characters of all that it was given, with the opening."""
    _step: Step = field(init=False)
    _input: Cursor = field(default_factory=Cursor)
    _blank: list[str] = field(default_factory=list)
    """White space that came and will tell nothing; behind the input."""
    _deaf: bool = False
    """Whether more of that would change nothing."""
    _done: list[str] = field(init=False)
    _body: Body | None = None
    _body_at: int = 0
    """Where in `_done` the body begins."""

    def __post_init__(self) -> None:
        self._done = [self.opening]
        self._step = self.form.begin
        self.size = len(self.opening)

    @property
    def done(self) -> str:
        """What was understood: all of the form if it is complete, else its opening and whole bodies.

        Of one that counts only at the beginning of a line, all that shows that it is none.
        """
        return "".join(self._done)

    @property
    def rest(self) -> str:
        """What was not."""
        return "".join((self._input.rest, *self._blank))

    def read(self, text: str, *, ended: bool = False) -> bool | None:
        """Take in more text, of which no more will come if it `ended`. True if the form is complete, None if it may become so."""
        self.size += len(text)
        if self._deaf and text.isspace():
            self._blank.append(text)
            return None
        self._input.push("".join((*self._blank, text)))
        self._blank.clear()
        self._input.ended = ended
        self._deaf = False
        found: bool | None = None
        try:
            while found is None and (self._body is None or self._follow(self._body)):
                found = self._go_on()
        except More as more:
            self._deaf = isinstance(more, MoreThanSpace)
        return found

    def give_up(self, *, cut: bool) -> bool:
        """Whether what ended before it was complete holds calls, or was to hold one but was `cut`; then it is all of the form."""
        complete = (self.form.marked and cut) or (bool(self.calls) and not self.form.at_line_start)
        if complete:
            self._done.append(self._input.take(self.size))
        return complete

    def _go_on(self) -> bool | None:
        """Read up to the next body, or to the end; what was understood is consumed."""
        start = self._input.at
        try:
            found = self._step(self._input, self)
        except More:
            self._input.at = start
            raise
        if found is False and not self.form.at_line_start:
            self._input.at = start
        self._done.append(self._input.text[start : self._input.at])
        if not isinstance(found, Body):
            return found
        self._body, self._body_at = found, len(self._done)
        return None

    def _follow(self, body: Body) -> bool:
        """Read a body; whether it is over, and what stands behind it is next."""
        taken = body.follower.take(self._input.text, self._input.at)
        self._done.append(self._input.take(taken))
        if not body.follower.over and not self._input.ended:
            return False
        used = body.use("".join(self._done[self._body_at :]))
        self._body, self._step = None, body.then if used else _none
        return True


def _none(_cursor: Cursor, _reading: Reading) -> bool:
    """Stands behind a body that is part of no call."""
    return False


Step: TypeAlias = Callable[[Cursor, Reading], "Body | bool"]
"""Reads what stands before, between and behind the bodies of a form: says what body comes next, that the form ends, or is none.

Raises `More` where that is not known yet, having changed nothing but the cursor's place; it is asked again then.
"""
