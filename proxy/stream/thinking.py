"""Thinking that a model writes into its answer, between tags, where no parser took it out."""

from __future__ import annotations

import re

TAGS = ("think", "thinking", "thought", "reasoning")
_OPENING = re.compile(rf"\s*<({'|'.join(TAGS)})>")
_LONGEST = max(map(len, TAGS)) + 2
_CLOSED = "\n</{}>\n\n"


def open_thought(text: str) -> str | None:
    """The tag of a thought that an answer begins with and has not ended yet; None if there is none."""
    found = _OPENING.match(text)
    if found is None or f"</{found[1]}>" in text[found.end() :]:
        return None
    return found[1]


def after_thought(text: str) -> str:
    """An answer without the thought that it begins with, if that has ended."""
    found = _OPENING.match(text)
    at = text.find(f"</{found[1]}>") if found is not None else -1
    return text if found is None or at < 0 else text[at + len(found[1]) + 3 :].lstrip()


class ThoughtFilter:
    """Keeps the thinking of an answer well-formed when a model thinks again before it goes on.

    Within a thought its next opening tag is taken out, and where the answer itself comes instead, the thought is
    closed first. After a thought, or where there was none, another one in front of the continuation is no part of
    the answer: it is left out.
    """

    restarted = False

    def __init__(self, inside: str | None, *, closes: bool = True) -> None:
        """`inside` is the tag of the thought in which the answer was interrupted, None: in none.

        `closes`: what does not begin with a tag is the answer, rather than the rest of the thought.
        """
        self._inside = inside
        self._closes = closes
        self._held = ""
        self._until = ""
        """The closing tag up to which text is left out."""
        self.open = True

    def feed(self, text: str) -> str:
        """New text in, text for the client out; held while it may be a tag."""
        if not self.open or not text:
            return text
        self._held += text
        if self._until:
            return self._skip()
        found = _OPENING.match(self._held)
        if found is None:
            return "" if _may_open(self._held) else self._release(self._answering(self._held))
        if self._inside is not None:
            return self._release(self._held[found.end() :])
        self._held = self._held[found.end() :]
        self._until = f"</{found[1]}>"
        return self._skip()

    def flush(self, *, interrupted: bool = False) -> str:
        """Return what is held when the attempt ends: a thought that never ended is left out."""
        del interrupted
        return self._release("" if self._until else self._answering(self._held))

    def _skip(self) -> str:
        at = self._held.find(self._until)
        if at < 0:
            self._held = self._held[-len(self._until) :]
            return ""
        rest = self._held[at + len(self._until) :]
        if not rest.strip():
            self._held = self._until + rest
            return ""
        return self._release(rest.lstrip("\n"))

    def _answering(self, text: str) -> str:
        if self._inside is None or not self._closes or not text.strip():
            return text
        return _CLOSED.format(self._inside) + text.lstrip()

    def _release(self, out: str) -> str:
        self._held = self._until = ""
        self.open = False
        return out


def _may_open(text: str) -> bool:
    bare = text.lstrip()
    return len(bare) < _LONGEST and any(f"<{tag}>".startswith(bare) for tag in TAGS)
