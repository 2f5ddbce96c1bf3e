"""Text, thoughts, calls and usage of an answer so far, over all attempts."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from proxy.core.piece import Identity, Piece
from proxy.stream.calls import CallCollector

_LONGEST_TOKEN = 24
"""Characters up to which one word is taken for one token."""
_LONGEST_WORD = 64
_JOINED_AT = 512


@dataclass(slots=True)
class Attempt:
    """One request to the backend, as far as its stream was read."""

    prompt_tokens: int
    """Estimated until usage tells."""
    bound: int | None = None
    """`max_tokens` it was sent with, where that is less than the client allows."""
    completion_tokens: int = 0
    deltas: int = 0
    finish: str | None = None
    finished: int = 0
    """How many choices have told why they ended."""
    usage: dict[str, Any] | None = None
    calling: bool = False
    """Whether it has begun a tool call."""
    withheld: bool = False
    """Whether the client has seen nothing of its tool calls yet."""
    unseen: int = 0
    """Tokens of it that may be a tool call written as text, which nobody has read to its end yet."""
    dropped: int = 0
    """Tokens of it that the client never gets: an unfinished tool call, a second version of the answer."""
    in_vain: bool = False
    """Whether it was left for a tool call that did not fit."""
    cleared: bool = False
    """Whether the backend cleared its slot, because all slots together had filled the memory."""
    copied: bool = False
    """Whether it said much again that was said before, which was taken out."""
    restarted: bool = False
    """Whether the model began its answer anew instead of going on."""
    counted: bool = False
    """Whether the backend counts while it generates."""
    errored: bool = False
    searching: bool = False
    """Whether it calls Spillway's own tool, so that the client sees none of its calls."""

    @property
    def used(self) -> int:
        """Tokens of the window that it takes."""
        said = self.completion_tokens if self.counted else self.completion_tokens + self.unseen
        return self.prompt_tokens + said

    def restart(self) -> None:
        """Note that it was another version of the answer, of which the client gets nothing."""
        self.restarted, self.dropped = True, self.completion_tokens

    @property
    def gained(self) -> int:
        """Tokens of it that the client gets."""
        return self.completion_tokens - self.dropped

    @property
    def spoke(self) -> bool:
        """Return whether the model said anything in it."""
        return self.deltas > 0 or self.unseen > 0 or self.completion_tokens > 0


class Answer:
    """Text, reasoning, tool calls, usage and finish of the only choice, accumulated from pieces."""

    def __init__(self, prompt_tokens: int, count: Callable[[str], int], *, bound: int | None = None) -> None:
        """`count` counts tokens of a piece of completion text that is too long to be one token.

        `bound` is the `max_tokens` of the first attempt, where that is Spillway's own.
        """
        self.count = count
        self._text = _Pieces()
        self._reasoning = _Pieces()
        self._mark: tuple[int, int, int, bool, CallCollector] | None = None
        self._cut = (-1, "")
        """Its size after half a word was taken back, and the white space that stood before that."""
        self.placed = 0
        """Characters of the text that stand in the prompt: what was said before the newest search."""
        self.calls = CallCollector()
        self.merged = 0
        """Calls that were left out because they had been made before."""
        self.thinking = False
        """Whether the last that was said was reasoning."""
        self.role_sent = False
        """Whether a delta named the role, which it does once."""
        self.identity: Identity | None = None
        self.named = ""
        """The model, as the backend called it last; empty: it did not say."""
        self.attempts = [Attempt(prompt_tokens, bound=bound)]
        self.ended = ""
        """The finish reason that Spillway gave it; empty: it has the backend's."""

    @property
    def attempt(self) -> Attempt:
        """The running one."""
        return self.attempts[-1]

    @property
    def text(self) -> str:
        """All content so far."""
        return self._text.joined()

    @property
    def text_size(self) -> int:
        """Characters of that."""
        return self._text.size

    def text_since(self, size: int) -> str:
        """The content behind so many characters; costs little more than its length."""
        return self._text.since(size)

    @property
    def unplaced(self) -> str:
        """Return what of it the prompt does not have."""
        return self.text[self.placed :]

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return self._reasoning.joined()

    @property
    def completion_tokens(self) -> int:
        """Tokens generated over all attempts."""
        return sum(attempt.completion_tokens for attempt in self.attempts)

    @property
    def size(self) -> int:
        """Characters that the client got or gets."""
        return self._text.size + self._reasoning.size

    @property
    def delivered_tokens(self) -> int:
        """Tokens that the client got or gets."""
        return sum(attempt.gained for attempt in self.attempts)

    @property
    def begun(self) -> bool:
        """Return whether anything but a role was said."""
        return any(attempt.spoke for attempt in self.attempts)

    @property
    def has_text(self) -> bool:
        """Return whether there is any content yet."""
        return bool(self._text)

    @property
    def resumes(self) -> int:
        """Return how many times it was gone on with; an attempt that added nothing to it is none."""
        return sum(1 for a in self.attempts[:-1] if a.spoke and not (a.restarted or a.cleared or a.searching))

    def vain(self, gain: int) -> int:
        """Return how many attempts in a row, the running one included, have each given the client less than `gain` tokens.

        The first attempt had its prompt to share the window with; one that was cleared was not at fault.
        """
        count = 0
        for number in range(len(self.attempts) - 1, -1, -1):
            attempt = self.attempts[number]
            if attempt.cleared or attempt.searching:
                continue
            first = number == 0 and attempt.spoke and not attempt.in_vain
            # What is withheld is not given yet; if it is taken back, nothing was gained by it.
            waits = attempt.withheld and attempt is self.attempt
            if not waits and (first or attempt.gained >= gain):
                break
            count += 1
        return count

    def mark(self) -> None:
        """Remember where the answer stands, for `rewind`."""
        tokens = self.attempt.completion_tokens
        self._mark = (self._text.size, self._reasoning.size, tokens, self.role_sent, deepcopy(self.calls))

    @property
    def held(self) -> int:
        """Characters that were said since the mark."""
        return 0 if self._mark is None else self.size - self._mark[0] - self._mark[1]

    def rewind(self) -> str:
        """Take back what was said since the mark, which nobody has seen; the text that was taken back."""
        if self._mark is None:
            return ""
        said, thought, tokens, self.role_sent, self.calls = self._mark
        text = self.text
        back = text[said:]
        self._text.replace(text[:said])
        self._reasoning.replace(self.reasoning[:thought])
        self.attempt.dropped += max(0, self.attempt.completion_tokens - tokens)
        self._mark = None
        return back

    def add_text(self, text: str, *, thought: bool = False) -> None:
        """Content, or reasoning, that was held back when its chunk came, and is said now."""
        if text:
            self.thinking = thought
            (self._reasoning if thought else self._text).add(text)

    def skip(self, text: str) -> None:
        """Something that was generated and is not said, or not yet."""
        attempt = self.attempts[-1]
        attempt.deltas += 1
        attempt.completion_tokens += self._tokens(text)

    def repeated(self, call: str) -> None:
        """A call that was generated, and is left out because it was made before."""
        self.merged += 1
        self.skip(call)
        self.attempt.dropped += self._tokens(call)

    def cut_back(self) -> str:
        """Take back the word that the text ends in, with its tokens, and return the white space before it.

        For an answer that nobody has seen yet: a model that is asked to go on can't finish half a word. Of an answer
        that has not begun, the same is done to the reasoning. Until more is said, a second time changes nothing.
        """
        if self._cut[0] == self.size:
            return self._cut[1]
        pieces = self._text if self._text or not self.thinking else self._reasoning
        text = pieces.joined()
        words = text.split()
        last = words[-1] if words and text.endswith(words[-1]) else ""
        before = text[: len(text) - len(last)]
        kept = before.rstrip()
        if not kept or kept == text or len(text) - len(before) > _LONGEST_WORD:
            return ""
        pieces.replace(kept)
        self.attempt.completion_tokens = max(0, self.attempt.completion_tokens - self._tokens(last))
        self._cut = (self.size, before[len(kept) :] if pieces is self._text else "")
        return self._cut[1]

    def add_plain(self, text: str, *, thought: bool = False, told: int = 0) -> None:
        """A piece that says nothing but a text; `told` are the completion tokens that came with it, if any did."""
        self.thinking = thought
        (self._reasoning if thought else self._text).add(text)
        attempt = self.attempts[-1]
        attempt.deltas += 1
        if told:
            attempt.completion_tokens, attempt.counted = told, True
        else:
            attempt.completion_tokens += 1 if len(text) <= 4 else self._tokens(text)

    def add(self, piece: Piece) -> None:
        """Take in one piece."""
        attempt = self.attempts[-1]
        if piece.identity is not None:
            self.named = piece.identity.model or self.named
            self.identity = self.identity or piece.identity
        if piece.finish is not None:
            attempt.finish = piece.finish
            attempt.finished += 1
        self.role_sent |= piece.role
        self._add_content(attempt, piece)
        for other in piece.other_choices:
            attempt.finished += other.finish is not None
            self.calls.add(other.calls, other.index)
        # After what was said, because it counts that too where usage comes with every chunk (vLLM).
        self.report(piece)

    def report(self, piece: Piece) -> None:
        """Take in what the backend counts with a piece."""
        attempt = self.attempts[-1]
        # Zeros on interim chunks are no report (Ollama).
        if piece.prompt_tokens:
            attempt.prompt_tokens = piece.prompt_tokens
            attempt.usage = attempt.usage if piece.usage is None else piece.usage
        if piece.completion_tokens:
            attempt.completion_tokens, attempt.counted = piece.completion_tokens, True

    def whole(self) -> Piece:
        """All of it in one piece."""
        finish = self.ended or self.attempt.finish
        return Piece(text=self.text, thought=self.reasoning, calls=self.calls.whole, finish=finish)

    def usage(self) -> dict[str, Any]:
        """Usage of the whole answer: the last prompt, all completion tokens; counted where nobody reported."""
        reported = next((a.usage for a in reversed(self.attempts) if a.usage is not None), {})
        prompt, completion = self.attempt.prompt_tokens, self.completion_tokens
        return {
            **reported,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _add_content(self, attempt: Attempt, piece: Piece) -> None:
        said = piece.thought + piece.text
        if piece.thought:
            self._reasoning.add(piece.thought)
            self.thinking = True
        if piece.text:
            self._text.add(piece.text)
            self.thinking = False
        if piece.calls:
            attempt.calling = True
            self.calls.add(piece.calls, piece.index)
            said += "".join(call.name + call.arguments for call in piece.calls) or "x"
        if said:
            self.skip(said)

    def _tokens(self, text: str) -> int:
        """A delta is taken for one token, as llama.cpp, vLLM, Ollama and LM Studio send them.

        A word with the space before it is one; a delta with a gap inside, or of many characters, holds several.
        """
        if len(text) <= 4 or (text.isascii() and len(text) <= _LONGEST_TOKEN and len(text.split()) <= 1):
            return 1
        return max(1, self.count(text))


class _Pieces:
    """A text that grows piece by piece; joined now and then, because every string has its overhead."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)
        if len(self._pieces) >= _JOINED_AT:
            self._pieces = [self.joined()]

    def replace(self, text: str) -> None:
        self._pieces, self.size = [text], len(text)

    def since(self, size: int) -> str:
        missing = self.size - size
        if missing <= 0:
            return ""
        newest: list[str] = []
        for piece in reversed(self._pieces):
            newest.append(piece)
            missing -= len(piece)
            if missing <= 0:
                break
        return "".join(reversed(newest))[-missing:]

    def joined(self) -> str:
        return "".join(self._pieces)

    def __bool__(self) -> bool:
        return any(self._pieces)
