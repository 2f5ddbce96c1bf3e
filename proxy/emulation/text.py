"""Text of an answer in which no call can stand (thoughts, code, structures), and the white space between texts and calls."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from proxy.emulation.calls import Scanned, Text
from proxy.emulation.repair import Brackets

_SPACE = re.compile(r"\s*+")
_PROSE = re.compile(r"[^<\[{`]*[^<\[{`\s]")
"""Text up to the next character that may begin something, without the white space at its end."""
_INLINE = re.compile(r"[^\n`]*+")
_LINE = re.compile(r"[^\n]*+\n?")
_LINE_BEGIN = re.compile(r"[ \t]{0,3}+`{0,64}+[ \t]{0,64}+")
_THOUGHT = re.compile(r"<?[^<]*+")
TICKS = re.compile(r"`{1,64}+")
_FENCE = 3


class TextScanner(ABC):
    """Consumes text that may not be complete yet, and hands it out."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        """Characters of the text that were consumed."""
        self._ended = False
        self._state: Callable[[], bool] = self._prose
        """Consumes some of the text; whether it could without more of it."""
        self._out: list[Scanned] = []
        self._gap: list[str] = []
        """White space since the last text or call."""
        self._before: str | None = None
        """White space before the first call since the last text; None if there was no call."""
        self._spoke = False
        self._indent: int | None = 0
        """Blanks on this line, if there is nothing else on it yet."""
        self._sent = 0
        """Characters at the beginning of what is held that an earlier attempt has sent."""
        self.answered = 0
        """Characters of text that were handed out, without thoughts."""

    @abstractmethod
    def _opening(self, character: str) -> bool:
        """Read something that may open a form or a thought; whether it could without more text."""

    @abstractmethod
    def _fence(self) -> bool | None:
        """Begin a code block of calls; False: it is none, None: too early to know."""

    def _take(self, end: int) -> str:
        """Consume the text up to an index."""
        start, self._at = self._at, end
        return self._text[start:end]

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        return self._take(found.end()) if found is not None else ""

    def _prose(self) -> bool:
        character = self._text[self._at]
        if character.isspace():
            self._space(self._match(_SPACE))
        elif character == "`":
            return self._ticks()
        elif character in "<[{":
            return self._opening(character)
        else:
            self._say(self._match(_PROSE))
        return True

    def _separate(self) -> None:
        if self._before is None:
            self._before, self._gap = "".join(self._gap), []
        # What was sent of the call itself stays where it is; white space before an answer's first text is dropped.
        self._sent = min(self._sent, len(self._before)) if self._spoke else 0
        self._indent = 0

    def _space(self, text: str) -> None:
        self._gap.append(text)
        line = text.rfind("\n")
        if line >= 0:
            self._indent = 0
        if self._indent is not None:
            self._indent += len(text[line + 1 :].expandtabs(4))

    def _say(self, text: str, *, thought: bool = False) -> None:
        """Hand out text, and the white space that was held before it."""
        self.answered += 0 if thought else len(text)
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
        sent = min(self._sent, len(text))
        self._sent -= sent
        return text[sent:]

    def _structure(self, brackets: Brackets) -> bool:
        """Hand out an object or an array as it comes: nothing inside of it is a call."""
        inside = self._take(brackets.take(self._text, self._at))
        text = inside.rstrip()
        if text:
            self._say(text)
        self._space(inside[len(text) :])
        if brackets.over:
            self._state = self._prose
        return True

    def _thought(self, closing: str) -> bool:
        if self._text.startswith(closing, self._at):
            self._say(self._take(self._at + len(closing)), thought=True)
            self._indent = 0
            self._state = self._prose
        elif not self._ended and closing.startswith(self._text[self._at : self._at + len(closing)]):
            return False
        else:
            self._say(self._match(_THOUGHT), thought=True)
        return True

    def _ticks(self) -> bool:
        """Read a run of backticks: a code block, which may hold calls, or inline code."""
        ticks = self._run_of_ticks()
        if not ticks:
            return False
        started = self._fence() if len(ticks) >= _FENCE else False
        if started is False:
            self._code(self._take(self._at + len(ticks)))
        return started is not None

    def _run_of_ticks(self) -> str:
        """The backticks that come next; empty where there may be more of them."""
        found = TICKS.match(self._text, self._at)
        assert found is not None
        return found.group() if self._ended or found.end() < len(self._text) else ""

    def _code(self, ticks: str) -> None:
        self._say(ticks)
        self._state = partial(self._inline, len(ticks))

    def _inline(self, ticks: int) -> bool:
        """Read inline code up to as many backticks on the same line; else it was the first line of a code block, or nothing."""
        following = self._text[self._at]
        if following == "\n":
            self._state = partial(self._block, ticks) if ticks >= _FENCE else self._prose
        elif following == "`":
            found = self._run_of_ticks()
            self._say(self._take(self._at + len(found)))
            self._state = self._prose if len(found) == ticks else self._state
            return bool(found)
        else:
            self._say(self._match(_INLINE))
        return True

    def _block(self, ticks: int) -> bool:
        """Read code up to a line that holds nothing but as many backticks."""
        begin = _LINE_BEGIN.match(self._text, self._at) if self._indent == 0 else None
        end = self._at if begin is None else begin.end()
        if begin is not None and end == len(self._text) and not self._ended:
            return False
        if begin is not None and begin.group().count("`") >= ticks and self._text[end : end + 1] in ("", "\n", "\r"):
            self._say(self._take(end))
            self._state = self._prose
        else:
            found = _LINE.match(self._text, end)
            self._say(self._take(end if found is None else found.end()))
        return True
