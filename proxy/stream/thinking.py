"""Thinking that a model writes into its answer, between tags, on servers whose parser did not remove it."""

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
"""Header of a gpt-oss channel; `to=` in it names the tool that is called."""
_STRIPPED = r"assistantfinal(?=\S)|(?:assistant)?(?:\s?to=(?=\w)|(?:analysis|commentary)(?=[^\W_]|[\"“(]|\s?to=))"
_FRONT = regex.compile(rf"\s*(?:{_HEADER}|(?P<stray></(?:{'|'.join(TAGS)})>\s*)|{_STRIPPED})")
"""Marks that may come before an answer. `_SURE` can't be anything else, provided that a tool of that name exists."""
_TOOL = r"(?:\A\s*|assistant)(?:commentary|analysis)?\s?to=(?:functions\.)?(?P<name>[\w.-]+)\s?(?:json|code)?\s*(?=\{)"
_SURE = regex.compile(rf"assistant(?P<final>final)(?=[^\s.,:;!?'\")\]])|{_TOOL}")
_UNMARKED = re.compile(r"(?:\A\s*|assistant)(analysis|commentary)")
_ENDED = r"<\|(?:end|return|call)\|>\s{0,9}"
_NEXT, _END = regex.compile(rf"(?:{_ENDED})?{_HEADER}|{_ENDED}\Z"), regex.compile(rf"{_ENDED}(?P<header>)\Z")
BEGINNINGS, _LONGEST = frozenset("<act"), 512
"""First characters of such marks, and the most characters of a header."""


def open_thought(text: str) -> str | None:
    """Return the tag of the thinking that an answer begins with and has not ended yet, or None."""
    found = _OPENING.match(text)
    return None if found is None or f"</{found[1]}>" in text[found.end() :] else found[1]


def after_thought(text: str) -> str:
    """Strip the first thinking block from an answer, if it has ended."""
    found = _THOUGHT.match(text)
    return text if found is None else text[found.end() :].lstrip()


def behind_thoughts(text: str) -> str:
    """Strip all ended thinking blocks from the beginning of an answer; one that has not ended stays."""
    while (rest := after_thought(text)) != text:
        text = rest
    return text


class Filter:
    """Holds the beginning of a text until it is clear which part of it to pass on; the rest passes unchanged."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.open = is_open
        """Whether text may still be held, removed or inserted."""
        self.restarted = False
        """Whether the text turned out to be the answer begun anew, of which nothing is passed on."""
        self._held = ""

    def feed(self, text: str) -> str:
        """Take in new text, and return text to pass on."""
        if not self.open or not text:
            return "" if self.restarted else text
        self._held += text
        return self._judge(ended=False)

    def flush(self) -> str:
        """Return what is held when the attempt ends; nothing is held after it."""
        return self._judge(ended=True) if self.open else ""

    def _judge(self, *, ended: bool) -> str:
        """Return what to pass on of the held text. An empty result with the filter still open means: nothing yet."""
        raise NotImplementedError

    def _release(self, cut: int) -> str:
        """Close the filter, and return the held text without its first `cut` characters."""
        out, self._held, self.open = self._held[cut:], "", False
        return out


class ThoughtFilter(Filter):
    """Keeps the thinking of an answer well-formed when a model thinks again before it goes on.

    If the answer was interrupted while thinking, another opening tag is removed; if the answer itself follows, the thinking
    is closed first. Otherwise, thinking before the continuation is not part of the answer and is removed.
    """

    def __init__(self, inside: str | None, *, closes: bool = True) -> None:
        """`inside` is the tag of the thinking in which the answer was interrupted, if any.

        `closes`: a text that does not begin with a tag is the answer, rather than more of the thinking.
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
    """Reads marks at the beginning of an answer that the server's parser should have removed: pieces in, pieces out.

    These are a closing tag of thinking that was opened in the prompt, and the channels of gpt-oss ("OpenAI harmony response
    format"): the analysis channel becomes reasoning, and a call stays as written, for the reader of calls. On a server that
    drops special tokens, "analysis…assistantfinal…" remains of them. Such text is held until it is certain, since
    "analysisResults" is ordinary text.
    """

    def __init__(self, tools: Collection[str], *, resumes: bool) -> None:
        """`tools` are the names that may be called. An attempt that `resumes` another may close the other's thinking."""
        self.over = False
        """Whether all that follows is text."""
        self.held: list[Piece] = []
        """Pieces whose kind is not known yet."""
        self._tools, self._resumes = tools, resumes
        self._text = self._channel = ""
        """Text not passed on yet, and the channel that it belongs to."""
        self._out = ["", ""]
        """Text and reasoning to pass on."""
        self._like: Piece | None = None
        """The newest piece since something began."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """Take in the next piece, and return pieces to pass on now."""
        if not piece.choice or piece.index or piece.other_choices:
            return (*(self.close() if piece.done or piece.error else ()), piece)
        return self._read(piece, ended=bool(piece.finish or piece.calls))

    def close(self) -> Sequence[Piece]:
        """Return what is held at the end of the answer."""
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
        """Identify marks before the answer; if the answer ends before that is certain, they are text."""
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
        """Read channels. In the last one, which is the answer, marks are text, except for one at its end."""
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
