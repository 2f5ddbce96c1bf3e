"""Thinking that a model writes into its answer, between tags, where no parser took it out."""

import re

from typing_extensions import override

TAGS = ("think", "thinking", "thought", "reasoning")
_OPENING = re.compile(rf"\s*<({'|'.join(TAGS)})>")
_CLOSING = re.compile(rf"</(?:{'|'.join(TAGS)})>")
_LONGEST = max(map(len, TAGS)) + 2


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


def behind_thoughts(text: str) -> str:
    """An answer without any of the thoughts that it begins with; from the beginning of the one that it has not ended."""
    while (rest := after_thought(text)) != text:
        text = rest
    return text


class Filter:
    """Holds the beginning of a text back until it is known what of it is passed on; the rest passes as it is."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.open = is_open
        """Whether text may still be held back, taken out or put in."""
        self.restarted = False
        """Whether it turned out to be the answer from its beginning on, of which nothing is passed on."""
        self._held = ""

    def feed(self, text: str) -> str:
        """New text in, text to pass on out."""
        if not self.open or not text:
            return "" if self.restarted else text
        self._held += text
        return self._judge(ended=False)

    def flush(self) -> str:
        """Return what is held when the attempt ends; nothing is held after it."""
        return self._judge(ended=True) if self.open else ""

    def _judge(self, *, ended: bool) -> str:
        """Return what to pass on of the text that is held; empty, and still open: nothing yet."""
        raise NotImplementedError

    def _release(self, cut: int) -> str:
        """Close, and return what is held behind its first `cut` characters."""
        out, self._held, self.open = self._held[cut:], "", False
        return out


class ThoughtFilter(Filter):
    """Keeps the thinking of an answer well-formed when a model thinks again before it goes on.

    Within a thought its next opening tag is taken out, and where the answer itself comes instead, the thought is
    closed first. After a thought, or where there was none, another one in front of the continuation is no part of
    the answer: it is left out.
    """

    def __init__(self, inside: str | None, *, closes: bool = True) -> None:
        """`inside` is the tag of the thought in which the answer was interrupted, None: in none.

        `closes`: what does not begin with a tag is the answer, rather than the rest of the thought.
        """
        super().__init__()
        self._inside = inside
        self._closes = closes

    @override
    def _judge(self, *, ended: bool) -> str:
        held, found = self._held, _OPENING.match(self._held)
        if found is None:
            if not ended and _may_open(held):
                return ""
            if self._inside is None or not self._closes or not held.strip():
                return self._release(0)
            return f"\n</{self._inside}>\n\n{self._release(0).lstrip()}"
        if self._inside is not None:
            return self._release(found.end())
        closing = f"</{found[1]}>"
        end = held.find(closing, found.end()) + len(closing)
        over = end >= len(closing) and bool(held[end:].strip())
        if not over:
            return self._release(len(held)) if ended else ""
        return self._release(end).lstrip("\n")


class StrayEndFilter(Filter):
    """Takes out the end of a thought that an answer begins with, whose beginning was in the prompt, or was taken out by a parser."""

    @override
    def _judge(self, *, ended: bool) -> str:
        bare = self._held.lstrip()
        if found := _CLOSING.match(bare):
            rest = bare[found.end() :].lstrip()
            return self._release(len(self._held) - len(rest)) if rest or ended else ""
        may = any(f"</{tag}>".startswith(bare) for tag in TAGS)
        return "" if may and bare and not ended else self._release(0)


def _may_open(text: str) -> bool:
    bare = text.lstrip()
    return len(bare) < _LONGEST and any(f"<{tag}>".startswith(bare) for tag in TAGS)
