"""From what a brain says to deltas: cut into tokens, ended by stop strings, `max_tokens` or a full window."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from tests.fakes.model import Prompt, Reply, ToolCall
from tests.fakes.tokens import FakeTokenizer


class Broken(Exception):
    """The brain wants an error in mid-answer."""


class Dropped(Exception):
    """The brain wants the connection dropped."""


@dataclass(slots=True)
class Delta:
    """A piece of an answer. For `call`, `text` is a piece of the arguments; `first` carries id and name."""

    kind: Literal["reasoning", "content", "call"]
    text: str
    tokens: int = 1
    index: int = 0
    call: ToolCall | None = None
    first: bool = False
    last: bool = False


class Generation:
    """One answer being made. Iterate it once; then `finish` and the counters hold."""

    def __init__(self, reply: Reply, prompt: Prompt, tokenizer: FakeTokenizer, *, echo: str = "") -> None:
        self.reply = reply
        self.prompt = prompt
        self.tokens = 0
        self.reasoning_tokens = 0
        self.sent = 0
        """Tokens of the deltas that went out."""
        self.finish = reply.finish or ("tool_calls" if reply.tool_calls else "stop")
        self._tokenizer = tokenizer
        self._echo = echo
        self.on_token: Callable[[], None] | None = None
        """Called after each delta has been made."""

    def __iter__(self) -> Iterator[Delta]:
        budget = self.prompt.budget
        for delta in self._until_stop(self._said()):
            self._accident()
            if budget is not None and self.tokens + delta.tokens > budget:
                self._run_out()
                return
            self.tokens += delta.tokens
            self.reasoning_tokens += delta.tokens if delta.kind == "reasoning" else 0
            if self.on_token is not None:
                self.on_token()
            yield delta
            if budget is not None and self.tokens >= budget:
                self._run_out()
                return
        self._accident(end=True)

    def _run_out(self) -> None:
        self.finish = "length"

    def _accident(self, *, end: bool = False) -> None:
        if end or self.tokens >= self.reply.after:
            if self.reply.error is not None:
                raise Broken(self.reply.error)
            if self.reply.cut:
                raise Dropped

    def _said(self) -> Iterator[Delta]:
        for piece in self._tokenizer.pieces(self._echo):
            yield Delta("content", piece, tokens=0)
        for text, tokens in self._pieces(self.reply.reasoning):
            yield Delta("reasoning", text, tokens)
        for text, tokens in self._pieces(self.reply.text):
            yield Delta("content", text, tokens)
        for index, call in enumerate(self.reply.tool_calls):
            yield from self._call(index, call)

    def _pieces(self, text: str | Iterable[str]) -> Iterator[tuple[str, int]]:
        for item in (text,) if isinstance(text, str) else text:
            if self.reply.exact and item:
                yield item, self._tokenizer.count(item)
            elif item:
                for piece in self._tokenizer.pieces(item):
                    yield piece, 1

    def _call(self, index: int, call: ToolCall) -> Iterator[Delta]:
        pieces = self._tokenizer.pieces(call.arguments)
        head = 1 + self._tokenizer.count(call.name)
        yield Delta("call", "", head, index, call, first=True, last=not pieces)
        for number, piece in enumerate(pieces, start=1):
            yield Delta("call", piece, 1, index, call, last=number == len(pieces))

    def _until_stop(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        """Leave out the first stop string and all that follows; what may become one is held back."""
        held, tokens = "", 0
        for delta in deltas:
            if delta.kind != "content" or not self.prompt.stop:
                yield delta
                continue
            held, tokens = held + delta.text, tokens + delta.tokens
            cut = min((at for stop in self.prompt.stop if (at := held.find(stop)) >= 0), default=-1)
            if cut >= 0:
                self.finish = "stop"
                yield Delta("content", held[:cut], tokens)
                return
            ready = len(held) - _overlap(held, self.prompt.stop)
            if ready > 0:
                yield Delta("content", held[:ready], tokens)
                held, tokens = held[ready:], 0
        if held:
            yield Delta("content", held, tokens)


def _overlap(text: str, stops: Iterable[str]) -> int:
    """Length of the longest end of the text that begins a stop string."""
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


def grouped(deltas: Iterable[Delta], size: int | tuple[int, ...]) -> Iterator[Delta]:
    """Join neighbours of one kind into deltas of about `size` tokens, or of those many in turn."""
    sizes = cycle((size,) if isinstance(size, int) else size)
    if size == 1:
        yield from deltas
        return
    size = next(sizes)
    held: Delta | None = None
    for delta in deltas:
        if held is not None and (held.kind, held.index) == (delta.kind, delta.index) and not delta.first:
            held.text += delta.text
            held.tokens += delta.tokens
            held.last = delta.last
        else:
            if held is not None:
                yield held
            held = delta
        if held.tokens >= size:
            yield held
            held, size = None, next(sizes)
    if held is not None:
        yield held
