"""Text, reasoning, calls and usage of an answer so far, over all attempts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from proxy.core.jsontext import loads_or_none
from proxy.core.piece import CallPart, Identity, Piece, joined_fields
from proxy.core.request import THOUGHT_FIELDS
from proxy.stream.thinking import behind_thoughts, open_thought

_LONGEST_TOKEN = 24
"""Longest word, in characters, that counts as one token."""
_LONGEST_WORD = 64


@dataclass(slots=True)
class Attempt:
    """One request to the backend, as far as its stream was read."""

    prompt_tokens: int
    """Tokens of the prompt, estimated until the backend reports them."""
    bound: int | None = None
    """`max_tokens` of the request if that is less than the client allows."""
    completion_tokens: int = 0
    finish: str | None = None
    usage: dict[str, Any] | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    """The newest `Piece.timings`."""
    calling: bool = False
    """Whether it has begun a tool call."""
    withheld: bool = False
    """Whether the client has seen nothing of its tool calls yet."""
    unseen: int = 0
    """Tokens of what may be the beginning of a tool call written as text; no call has been read from it yet."""
    dropped: int = 0
    """Tokens that the client never gets: an unfinished tool call, a second version of the answer."""
    cleared: bool = False
    """Whether the backend cleared its slot, because all slots together had filled the memory."""
    copied: bool = False
    """Whether much of it repeated the answer so far, and was removed."""
    restarted: bool = False
    """Whether the model began its answer anew instead of going on."""
    counted: bool = False
    """Whether the backend has reported `completion_tokens`, which then include `unseen` ones."""
    errored: bool = False
    searching: bool = False
    """Whether it calls a tool that Spillway answers, so that the client sees none of its calls."""

    @property
    def used(self) -> int:
        """Tokens of the window that it has filled so far."""
        return self.prompt_tokens + self.completion_tokens + (0 if self.counted else self.unseen)

    @property
    def gained(self) -> int:
        """Completion tokens that reach the client."""
        return self.completion_tokens - self.dropped

    @property
    def spoke(self) -> bool:
        """Return whether the model generated anything in it."""
        return self.completion_tokens > 0 or self.unseen > 0

    def restart(self) -> None:
        """Note that it was another version of the answer, of which the client gets nothing."""
        self.restarted, self.dropped = True, self.completion_tokens


class Answer:
    """Text, reasoning, tool calls, usage and finish reason of an answer, accumulated from pieces."""

    def __init__(
        self, prompt_tokens: int, count: Callable[[str], int], *, bound: int | None = None, unique: str = ""
    ) -> None:
        """`count` counts tokens of a piece of completion text that is too long to be one token.

        `bound` is the `max_tokens` of the first attempt, where that is Spillway's own; `unique` makes ids of calls.
        """
        self.unique = unique
        self.count = count
        self._text, self._reasoning = StringIO(), StringIO()
        self.calls: list[CallPart] = []
        """Tool calls, each joined from its parts."""
        self._extras: Mapping[str, Any] = {}
        self._places: dict[tuple[int, int | None], int] = {}
        """Position in `calls`, by choice and index."""
        self.mark: tuple[int, int, int, list[CallPart], dict[tuple[int, int | None], int]] | None = None
        """State to rewind to: sizes of text and reasoning, tokens, calls and their places. None if nothing can be taken back."""
        self._placed = (0, 0)
        """Characters of text and of reasoning that are in the prompt already: those before the newest search."""
        self.thinking = False
        """Whether the newest text is reasoning."""
        self.identity: Identity | None = None
        self.model = ""
        """Name of the model as the backend gave it last; empty if it gave none."""
        self.attempts = [Attempt(prompt_tokens, bound=bound)]
        self.repeated_calls = 0
        """Number of calls left out because the same attempt had made them before."""
        self.error: Any = None
        """Error that the answer ended in; None without one, or if the client got text before it."""
        self.ended = ""
        """Finish reason set by Spillway; empty if the backend's applies."""

    @property
    def attempt(self) -> Attempt:
        """The running attempt."""
        return self.attempts[-1]

    @property
    def text(self) -> str:
        """All content so far."""
        return self._text.getvalue()

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return self._reasoning.getvalue()

    @property
    def size(self) -> int:
        """Characters of text and reasoning."""
        return self._text.tell() + self._reasoning.tell()

    @property
    def is_empty(self) -> bool:
        """Return whether the client has nothing of it."""
        return self.size == 0 and not self.calls

    @property
    def has_text(self) -> bool:
        """Return whether there is any content yet."""
        return self._text.tell() > 0

    @property
    def in_thought(self) -> bool:
        """Return whether the model is thinking, and has not begun its answer."""
        if self.attempt.calling or self.calls:
            return False
        return open_thought(behind_thoughts(self.text)) is not None if self.text.strip() else self.thinking

    @property
    def only_thought(self) -> bool:
        """Return whether there is only reasoning so far, neither text for the client nor a call."""
        if self.calls or self.attempt.calling:
            return False
        if not (text := self.text.strip()):
            return self._reasoning.tell() > 0
        if not text.startswith("<"):
            return False
        rest = behind_thoughts(text)
        return not rest or open_thought(rest) is not None

    @property
    def unplaced(self) -> str:
        """Text that is not in the prompt yet."""
        return self.text[self._placed[0] :]

    @property
    def unplaced_thoughts(self) -> Mapping[str, str]:
        """Reasoning that is not in the prompt yet, by the field in which the server writes it."""
        thought = self.reasoning[self._placed[1] :]
        return {name: thought for name in THOUGHT_FIELDS if thought and name in self._extras}

    def place(self) -> None:
        """Note that all of the answer so far is in the prompt."""
        self._placed = self._text.tell(), self._reasoning.tell()

    @property
    def calls_are_complete(self) -> bool:
        """Return whether each call has a name, and arguments that are valid JSON or empty."""
        calls = [(call.name, call.arguments) for call in self.calls]
        return all(name and (not written.strip() or loads_or_none(written) is not None) for name, written in calls)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated over all attempts."""
        return sum(attempt.completion_tokens for attempt in self.attempts)

    @property
    def delivered_tokens(self) -> int:
        """Tokens that the client got or gets."""
        return sum(attempt.gained for attempt in self.attempts)

    @property
    def has_output(self) -> bool:
        """Return whether the model generated anything."""
        return any(attempt.spoke for attempt in self.attempts)

    def attempts_in_vain(self, gain: int) -> int:
        """Count the latest attempts in a row, the running one included, that each gave the client less than `gain` tokens.

        The first attempt ends the count if it said anything, since its prompt may have left little room. Attempts whose slot
        the backend cleared are skipped: they were not at fault.
        """
        count = 0
        for number in range(len(self.attempts) - 1, -1, -1):
            attempt = self.attempts[number]
            if attempt.cleared or attempt.searching:
                continue
            running = attempt is self.attempt
            # An earlier one with something withheld was left in the middle of a tool call that did not fit.
            first = number == 0 and attempt.spoke and (running or not (attempt.withheld or attempt.unseen))
            # A withheld call has not reached the client; if it is taken back, the attempt gained nothing.
            waits = attempt.withheld and running
            if not waits and (first or attempt.gained >= gain):
                break
            count += 1
        return count

    def begin(self, attempt: Attempt) -> None:
        """Begin another attempt, which numbers its calls anew."""
        self.attempts.append(attempt)
        self._places = {}

    def set_mark(self) -> None:
        """Remember the end of the answer so far, for `rewind`."""
        tokens = self.attempt.completion_tokens
        self.mark = (self._text.tell(), self._reasoning.tell(), tokens, [*self.calls], {**self._places})

    @property
    def size_since_mark(self) -> int:
        """Characters after the mark."""
        return 0 if self.mark is None else self.size - self.mark[0] - self.mark[1]

    def rewind(self) -> str:
        """Take back everything after the mark, which the client has not seen, and return the text of it."""
        if self.mark is None:
            return ""
        text_size, reasoning_size, tokens, self.calls, self._places = self.mark
        text = self.text
        _cut(self._text, text_size)
        _cut(self._reasoning, reasoning_size)
        self.attempt.dropped += max(0, self.attempt.completion_tokens - tokens)
        self.mark = None
        return text[text_size:]

    def cut_word(self) -> str:
        """Take back the last word of the text, with its tokens, and return the white space before it.

        Only for an answer that the client has not seen yet. The word may be cut in half, and a model that is asked to go on
        can't finish it. If there is no text, the last word of the reasoning is taken back.
        """
        buffer = self._text if self.has_text or not self.thinking else self._reasoning
        text = buffer.getvalue()
        last = last_word(text)
        before = text[: len(text) - len(last)]
        rest = before.rstrip()
        if not rest or rest == text or len(last) > _LONGEST_WORD:
            return ""
        _cut(buffer, len(rest))
        self.attempt.completion_tokens = max(0, self.attempt.completion_tokens - self._tokens(last))
        return before[len(rest) :] if buffer is self._text else ""

    def add_text(self, text: str, *, thought: bool = False) -> None:
        """Add content, or reasoning, without counting it."""
        if text:
            self.thinking = thought
            (self._reasoning if thought else self._text).write(text)

    def count_only(self, text: str) -> None:
        """Count generated text without adding it: it is not shown, or not yet."""
        self.attempts[-1].completion_tokens += self._tokens(text)

    def drop_call(self, call: str) -> None:
        """Count a call that is left out because it was made before."""
        self.repeated_calls += 1
        self.count_only(call)
        self.attempt.dropped += self._tokens(call)

    def add(self, piece: Piece) -> None:
        """Take in one piece."""
        attempt = self.attempts[-1]
        if piece.identity is not None:
            self.model = piece.identity.model or self.model
            self.identity = self.identity or piece.identity
        if piece.finish is not None:
            attempt.finish = piece.finish
        generated = piece.thought + piece.text
        self.add_text(piece.thought, thought=True)
        self.add_text(piece.text)
        if piece.calls:
            attempt.calling = True
            self._add_calls(piece)
            generated += "".join([call.name + call.arguments for call in piece.calls]) or "x"
        if generated:
            self.count_only(generated)
        if piece.extras and not (piece.bare or piece.alone in self._extras):  # of reasoning the name is enough
            self._extras = joined_fields(self._extras, piece.extras)
        for other in piece.other_choices:
            self._add_calls(other)
        # After the text, because it counts that too where usage comes with every chunk (vLLM).
        self.report(piece)

    def report(self, piece: Piece) -> None:
        """Take in the backend's counts from a piece. Zeros are ignored: Ollama sends them on interim chunks."""
        attempt = self.attempts[-1]
        attempt.timings = piece.timings or attempt.timings
        if piece.prompt_tokens:
            attempt.prompt_tokens = piece.prompt_tokens
            attempt.usage = attempt.usage if piece.usage is None else piece.usage
        if piece.completion_tokens:
            attempt.completion_tokens, attempt.counted = piece.completion_tokens, True

    def joined(self) -> Piece:
        """Return the whole answer as one piece."""
        finish, thoughts = self.ended or self.attempt.finish, self._extras.keys() & set(THOUGHT_FIELDS)
        # The extras may hold a signature of the reasoning: one made for a single attempt is invalid for the whole.
        extras = {} if len(self.attempts) > 1 else self._extras
        extras = {**extras, **dict.fromkeys(thoughts, self.reasoning)}
        return Piece(text=self.text, thought=self.reasoning, calls=tuple(self.calls), extras=extras, finish=finish)

    def usage(self) -> dict[str, Any]:
        """Return the usage of the whole answer: the last prompt and all completion tokens, counted here if not reported."""
        reported = next((a.usage for a in reversed(self.attempts) if a.usage is not None), {})
        prompt, completion = self.attempt.prompt_tokens, self.completion_tokens
        total = prompt + completion
        return {**reported, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}

    def _add_calls(self, piece: Piece) -> None:
        """Take in parts of calls, which belong to a call by its index."""
        for part in piece.calls:
            place = self._places.setdefault((piece.index, part.index), len(self.calls))
            if place == len(self.calls):
                self.calls.append(part)
            else:
                self.calls[place] = self.calls[place].joined(part)

    def _tokens(self, text: str) -> int:
        """Count the tokens of a delta: usually one, as llama.cpp, vLLM, Ollama and LM Studio send them.

        A word with the space before it is one token. A delta with white space inside, or a long one, holds several.
        """
        if len(text) <= 4 or (text.isascii() and len(text) <= _LONGEST_TOKEN and len(text.split()) <= 1):
            return 1
        return max(1, self.count(text))


def _cut(text: StringIO, size: int) -> None:
    text.seek(size)
    text.truncate()


def last_word(text: str) -> str:
    """Return the last word of a text, or an empty string if the text ends in white space."""
    words = text.rsplit(maxsplit=1)
    return words[-1] if words and text.endswith(words[-1]) else ""
