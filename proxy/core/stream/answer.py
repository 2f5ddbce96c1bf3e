"""What an answer has said so far, over all attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REASONING_FIELDS = ("reasoning_content", "reasoning")
_LONGEST_TOKEN = 24
"""Characters up to which one word is taken for one token."""
_LONGEST_WORD = 64
_JOINED_AT = 512
_LARGEST = 2**53


@dataclass(slots=True)
class Identity:
    """What the first chunk said of the answer, and every chunk repeats."""

    id: str
    created: int
    model: str
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, chunk: dict[str, Any]) -> Identity:
        """Read it off a chunk."""
        extra = {"system_fingerprint": chunk["system_fingerprint"]} if "system_fingerprint" in chunk else {}
        made_by, model = chunk.get("id"), chunk.get("model")
        return cls(
            made_by if isinstance(made_by, str) else "",
            whole_number(chunk.get("created")),
            model if isinstance(model, str) else "",
            extra,
        )

    def stamp(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """The chunk under this identity."""
        return {**chunk, "id": self.id, "created": self.created, "model": self.model, **self.extra}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """A chunk of our own."""
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            **self.extra,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }


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
    usage: dict[str, Any] | None = None
    calling: bool = False
    """Whether it has begun a tool call."""
    errored: bool = False


class Answer:
    """Text, reasoning, usage and finish of the only choice, accumulated from chunks.

    Any JSON object may be handed in as a chunk: fields that are not what they should be are ignored.
    """

    def __init__(self, prompt_tokens: int, count: Callable[[str], int]) -> None:
        """`count` counts tokens of a piece of completion text that is too long to be one token."""
        self._count = count
        self._text = _Pieces()
        self._reasoning = _Pieces()
        self.role_said = False
        """Whether a delta named the role, which it does once."""
        self.identity: Identity | None = None
        self.attempts = [Attempt(prompt_tokens)]

    @property
    def attempt(self) -> Attempt:
        """The running one."""
        return self.attempts[-1]

    @property
    def text(self) -> str:
        """All content so far."""
        return self._text.joined()

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return self._reasoning.joined()

    @property
    def completion_tokens(self) -> int:
        """Tokens generated over all attempts."""
        return sum(attempt.completion_tokens for attempt in self.attempts)

    @property
    def begun(self) -> bool:
        """Whether anything but a role was said."""
        return any(attempt.deltas for attempt in self.attempts)

    @property
    def has_text(self) -> bool:
        """Whether there is any content yet."""
        return bool(self._text)

    @property
    def resumes(self) -> int:
        """How many times it was gone on with; an attempt that was refused before it said anything is none."""
        return sum(1 for attempt in self.attempts[:-1] if attempt.deltas)

    def add_text(self, text: str) -> None:
        """Content that was held back when its chunk came, and is said now."""
        self._text.add(text)

    def cut_back(self) -> str:
        """Take back the word that the text ends in, and return the white space before it.

        For an answer that nobody has seen yet: a model that is asked to go on can't finish half a word.
        """
        text = self.text
        words = text.split()
        last = words[-1] if words and text.endswith(words[-1]) else ""
        before = text[: len(text) - len(last)]
        kept = before.rstrip()
        if not kept or kept == text or len(text) - len(before) > _LONGEST_WORD:
            return ""
        self._text = _Pieces()
        self._text.add(kept)
        return before[len(kept) :]

    def add_plain(self, name: str, text: str) -> None:
        """A chunk that says nothing but a piece of text in this field of its delta."""
        (self._text if name == "content" else self._reasoning).add(text)
        attempt = self.attempts[-1]
        attempt.deltas += 1
        attempt.completion_tokens += 1 if _one_token(text) else max(1, self._count(text))

    def add_all(self, name: str, texts: list[str]) -> None:
        """Several chunks of that kind."""
        (self._text if name == "content" else self._reasoning).add("".join(texts))
        attempt = self.attempts[-1]
        attempt.deltas += len(texts)
        attempt.completion_tokens += sum(
            1 if len(text) <= 4 or _one_token(text) else max(1, self._count(text)) for text in texts
        )

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in one parsed chunk."""
        choice = first_choice(chunk)
        if self.identity is None and ("id" in chunk or choice is not None):
            self.identity = Identity.of(chunk)
        if choice is not None:
            finish = choice.get("finish_reason")
            if isinstance(finish, str) and finish:
                self.attempt.finish = finish
            if isinstance(delta := choice.get("delta"), dict):
                self._take_delta(delta)
        # After the delta, because it counts that too where usage comes with every chunk (vLLM).
        if isinstance(usage := chunk.get("usage"), dict):
            self._take_usage(usage)
        elif isinstance(timings := chunk.get("timings"), dict):
            self._take_timings(timings)

    def usage(self) -> dict[str, Any] | None:
        """Usage of the whole answer: the last prompt, all completion tokens; None if nobody reported."""
        last = self.attempt.usage
        if last is None:
            return None
        prompt, completion = whole_number(last.get("prompt_tokens")), self.completion_tokens
        return {
            **last,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _take_usage(self, usage: dict[str, Any]) -> None:
        """Zeros on interim chunks are no report (Ollama)."""
        attempt = self.attempt
        if prompt := whole_number(usage.get("prompt_tokens")):
            attempt.usage = usage
            attempt.prompt_tokens = prompt
        attempt.completion_tokens = whole_number(usage.get("completion_tokens")) or attempt.completion_tokens

    def _take_timings(self, timings: dict[str, Any]) -> None:
        """llama-server's running counts: `cache_n` and `prompt_n` are the prompt, `predicted_n` the answer."""
        attempt = self.attempt
        if "cache_n" in timings:  # older ones do not tell the cached part of the prompt
            prompt = whole_number(timings["cache_n"]) + whole_number(timings.get("prompt_n"))
            attempt.prompt_tokens = prompt or attempt.prompt_tokens
        attempt.completion_tokens = whole_number(timings.get("predicted_n")) or attempt.completion_tokens

    def _take_delta(self, delta: dict[str, Any]) -> None:
        attempt = self.attempt
        self.role_said |= bool(delta.get("role"))
        said = ""
        if isinstance(content := delta.get("content"), str) and content:
            self._text.add(content)
            said = content
        for name in REASONING_FIELDS:
            if isinstance(thought := delta.get(name), str) and thought:
                self._reasoning.add(thought)
                said += thought
                break
        if calls := delta.get("tool_calls") or delta.get("function_call"):
            attempt.calling = True
            said += _called(calls) or "x"
        if said:
            attempt.deltas += 1
            attempt.completion_tokens += 1 if _one_token(said) else max(1, self._count(said))


class _Pieces:
    """A text that grows piece by piece; joined now and then, because every string has its overhead."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)
        if len(self._pieces) >= _JOINED_AT:
            self._pieces = [self.joined()]

    def joined(self) -> str:
        return "".join(self._pieces)

    def __bool__(self) -> bool:
        return bool(self._pieces)


def _called(calls: Any) -> str:
    """What a model wrote of its calls in one delta: names and arguments."""
    listed = calls if isinstance(calls, list) else [{"function": calls}]
    functions = [call.get("function") for call in listed if isinstance(call, dict)]
    parts = [f.get(name) for f in functions if isinstance(f, dict) for name in ("name", "arguments")]
    return "".join(part for part in parts if isinstance(part, str))


def whole_number(value: Any) -> int:
    """A count as a backend reported it, 0 for anything that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return 0
    return int(value)


def _one_token(text: str) -> bool:
    """Whether a delta is taken for one token, as llama.cpp, vLLM, Ollama and LM Studio send them.

    A word with the space before it is; a delta with a gap inside, or of many characters, holds several.
    """
    if len(text) <= 4:
        return True
    return text.isascii() and len(text) <= _LONGEST_TOKEN and len(text.split()) <= 1


def first_choice(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice of a chunk, if it is an object."""
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None
