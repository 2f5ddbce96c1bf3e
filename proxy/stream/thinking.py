"""Thinking that a model writes into its answer, between tags, where no parser took it out."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import regex
from typing_extensions import override

from proxy.core.piece import Piece

TAGS = ("think", "thinking", "thought", "reasoning")
_OPENING = regex.compile(rf"\s*<({'|'.join(TAGS)})>")
_THOUGHT = regex.compile(rf"{_OPENING.pattern}.*?</\1>", regex.DOTALL)
_CHANNEL = r"channel\|>\s{0,9}(?P<channel>analysis|commentary|final)\b"
_HEADER = rf"(?P<header><\|(?:start\|>\s{{0,9}}assistant[^<]{{0,99}}<\|)?{_CHANNEL}[\s\S]{{0,99}}?<\|message\|>)"
"""Of a channel of gpt-oss; `to=` in it names the tool that is called."""
_STRIPPED = r"assistantfinal(?=\S)|(?:assistant)?(?:\s?to=(?=\w)|(?:analysis|commentary)(?=[^\W_]|[\"“(]|\s?to=))"
_FRONT = regex.compile(rf"\s*(?:{_HEADER}|(?P<stray></(?:{'|'.join(TAGS)})>\s*)|{_STRIPPED})")
"""What may stand in front of an answer; `_SURE` is what can't be anything else, if there is a tool of that name."""
_TOOL = r"(?:\A\s*|assistant)(?:commentary|analysis)?\s?to=(?:functions\.)?(?P<name>[\w.-]+)\s?(?:json|code)?\s*(?=\{)"
_SURE = regex.compile(rf"assistant(?P<final>final)(?=[^\s.,:;!?'\")\]])|{_TOOL}")
_UNMARKED = re.compile(r"(?:\A\s*|assistant)(analysis|commentary)")
_ENDED = r"<\|(?:end|return|call)\|>\s{0,9}"
_NEXT, _END = regex.compile(rf"(?:{_ENDED})?{_HEADER}|{_ENDED}\Z"), regex.compile(rf"{_ENDED}(?P<header>)\Z")
BEGINNINGS, _LONGEST = frozenset("<act"), 512
"""First characters of what may stand there, and how many a header has at most."""


def open_thought(text: str) -> str | None:
    """The tag of a thought that an answer begins with and has not ended yet; None if there is none."""
    found = _OPENING.match(text)
    return None if found is None or f"</{found[1]}>" in text[found.end() :] else found[1]


def after_thought(text: str) -> str:
    """An answer without the thought that it begins with, if that has ended."""
    found = _THOUGHT.match(text)
    return text if found is None else text[found.end() :].lstrip()


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
        held, found = self._held, _OPENING.match(self._held, partial=not ended)
        if found is not None and found.partial:
            return ""
        if found is None:
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


class Front:
    """Takes out of the beginning of an answer what its server's parser should have taken out: pieces in, pieces out.

    That is the end of a thought whose beginning was in the prompt, and the channels of gpt-oss ("OpenAI harmony response format"):
    thoughts become thoughts, and a call is left as it was written, for the reader of calls. Where a server drops special tokens,
    "analysis…assistantfinal…" is left of them: that is held until there is a sure sign of it, since "analysisResults" is text.
    """

    def __init__(self, tools: Collection[str], *, resumes: bool) -> None:
        """`tools` may be called; an attempt that `resumes` another may end a thought that it has begun."""
        self.over = False
        """Whether all that follows is text."""
        self.held: list[Piece] = []
        """Pieces of which it is not known yet what they are."""
        self._tools, self._resumes = tools, resumes
        self._text = self._channel = ""
        """What is not passed on yet, and the channel that it belongs to."""
        self._out = ["", ""]
        """Text and thoughts to pass on."""
        self._like: Piece | None = None
        """The newest piece since something began."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """Take in the next piece; what may be said now."""
        if not piece.choice or piece.index or piece.other_choices:
            return (*(self.close() if piece.done or piece.error else ()), piece)
        return self._read(piece, ended=bool(piece.finish or piece.calls))

    def close(self) -> Sequence[Piece]:
        """Return what is held where the answer ends."""
        return () if self.over or self._like is None else self._read(self._like.blank(), ended=True)

    def _read(self, piece: Piece, *, ended: bool) -> Sequence[Piece]:
        self._like, self._text = piece, self._text + piece.text
        self.held.append(piece)
        (self._follow if self._channel else self._decide)(ended=ended)
        if not (self._channel or self.over):
            return ()
        (text, thought), came = self._out, self.held
        self._out, self.held, self.over = ["", ""], [], self.over or ended
        if self.over and not thought and text == "".join([each.text for each in came]):
            return came
        last = replace(piece, frame=b"", text=text, thought=piece.thought + thought, more=piece.more or bool(thought))
        return [*(replace(each, frame=b"", text="") for each in came[:-1]), last]

    def _decide(self, *, ended: bool) -> None:
        """Find out what stands in front; where the answer ends before that is sure, it is text."""
        text, found = self._text, _FRONT.match(self._text, partial=not ended)
        if found is not None and found.partial:
            return
        if found is None or found["stray"]:
            taken = 0 if found is None or self._resumes else found.end()
            self._out[0], self.over = text[taken:], ended or taken < len(text)
            return
        if not found["header"]:
            sure = _SURE.search(text, max(0, len(text) - len(self.held[-1].text) - _LONGEST), partial=not ended)
            if sure is None or sure.partial or not (sure["final"] or sure["name"] in self._tools):
                self._out[0], self.over = text if ended else "", ended
                return
            header = f"<|channel|>{sure['final'] or 'commentary to=functions.' + sure['name']}<|message|>"
            text = _UNMARKED.sub(r"<|channel|>\1<|message|>", text[: sure.start()]) + header + text[sure.end() :]
        self._text, self._channel = text.lstrip(), "commentary"
        self._follow(ended=ended)

    def _follow(self, *, ended: bool) -> None:
        """Read channels; in the last one, which is the answer, marks are text, but for one at its end."""
        while True:
            found = (_END if self._channel == "final" else _NEXT).search(self._text, partial=not ended)
            said = self._text if found is None else self._text[: found.start()]
            self._out[self._channel == "analysis"] += said
            self._text = self._text[len(said) :]
            if found is None or found.partial or not found["header"]:
                return
            self._text = self._text[len(found[0]) :]
            self._channel = "call" if "to=" in found["header"] else found["channel"]
            self._out[0] += found["header"] if self._channel == "call" else ""
