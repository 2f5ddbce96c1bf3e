"""The demo model: its tokens, its window, and which text answers which conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from proxy.core.jsontext import are_objects
from proxy.core.request import Message, text_of

MODEL = "spillway-demo"
WINDOW = 4096
"""Tokens of prompt and answer together."""
LOST = " (The demo model cannot find its place in this text and stops here.)"

_TOKEN = re.compile(r" ?\w{1,6}| ?[^\w\s]|\s")
_PER_MESSAGE = 4
"""Tokens of the markup around a message in a chat template."""
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
_COUNT = re.compile(r"\bcount\b.{0,40}?\bto\s+(\d[\d,. ]*)", re.IGNORECASE)
_GO_ON = re.compile(r"^\W*(?:please\s+)?(?:continue|go on|carry on|keep going)\b|\bcontinue exactly\b", re.IGNORECASE)
_SUMMARISE = re.compile(
    r"(?:^|[.!?:]\s+|\n)(?:please\s+|now\s+)?(?:summari[sz]e\b|(?:write|give|make)\b[^.\n]{0,40}\bsummary\b)",
    re.IGNORECASE,
)
_TAILS = (400, 160, 80)
"""Characters of a partial answer's end that are looked for in the whole text, longest first."""
LARGEST_COUNT = 10_000
_ABOUT = (
    "Spillway stands between your client and your model. When a conversation no longer fits into the model's "
    "context window, Spillway shortens it before the model has to refuse it; when the window fills up in the "
    "middle of an answer, Spillway pauses, makes room, and lets the model go on in the same stream."
)
_REAL = (
    "To talk to a real model, start LM Studio, Ollama, llama-server or vLLM on this machine: it is found within "
    'seconds, and this demo is off. Or name one: SPILLWAY_BACKENDS=\'[{"url": "http://127.0.0.1:11434"}]\'.'
)
_TRY = (
    'To see it work, ask me to "count to 3000", which does not fit into my window. Number by '
    "number you can check that nothing is lost or said twice where one part ends and the next begins."
)


class RequestRefused(Exception):
    """A request is answered by an error with this status, message, and further `fields`."""

    def __init__(self, status: int, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """Tokens of the prompt, the partial answer that it ends in, and the new tokens."""

    prompt: int
    prefill: str
    tokens: Sequence[str]
    finish_reason: Literal["stop", "length"]


def tokens_of(text: str) -> list[str]:
    """Cut a text into tokens, the same on every run; joined they are the text again."""
    return _TOKEN.findall(text)


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Count the prompt tokens of a chat completion body.

    Raises:
        RequestRefused: it has no messages.
    """
    messages = body.get("messages")
    if not are_objects(messages):
        raise RequestRefused(400, "'messages' must be an array of objects")
    parts = [text_of(message) for message in messages]
    calls = [message.get("tool_calls") for message in messages]
    parts += [orjson.dumps(part).decode() for part in (body.get("tools"), *calls) if part]
    return sum(len(tokens_of(part)) for part in parts) + _PER_MESSAGE * (len(messages) + 1)


def generate(body: Mapping[str, Any]) -> DemoAnswer:
    """Answer a chat completion body.

    Raises:
        RequestRefused: malformed, or the prompt does not leave room for one token.
    """
    prompt = prompt_tokens(body)
    if prompt >= WINDOW:
        message = f"request ({prompt} tokens) exceeds the available context size ({WINDOW} tokens), try increasing it"
        raise RequestRefused(400, message, type="exceed_context_size_error", n_prompt_tokens=prompt, n_ctx=WINDOW)
    messages = body["messages"]
    tokens = tokens_of(_stopped(reply(messages, used=prompt, window=WINDOW), body.get("stop")))
    limit = next((body[name] for name in _LIMITS if isinstance(body.get(name), int)), -1)
    room = WINDOW - prompt if limit < 0 else min(WINDOW - prompt, max(1, limit))
    last = messages[-1] if messages else {}
    return DemoAnswer(
        prompt=prompt,
        prefill=text_of(last) if last.get("role") == "assistant" else "",
        tokens=tokens[:room],
        finish_reason="length" if len(tokens) > room else "stop",
    )


def reply(messages: Sequence[Message], *, used: int, window: int) -> str:
    """Return what the model says next: a whole answer, or the rest of the one that stands at the end.

    Args:
        messages: the conversation; a trailing assistant message is a partial answer to go on with.
        used: tokens of the prompt.
        window: tokens of the context window.
    """
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        return _rest(text_of(last), _requests(messages), used, window)
    question = text_of(last)
    if _GO_ON.search(question) and (beginning := _last_answer(messages)):
        return _rest(beginning, _requests(messages[:-1]), used, window) or "That was all of it."
    if _SUMMARISE.search(question):
        return summary(messages)
    return _full_answer(question, used, window)


def summary(messages: Sequence[Message]) -> str:
    """Return the beginnings of some messages: no understanding, but always the same.

    A single message is taken for a transcript that ends with the instruction.
    """
    texts = [text_of(message) for message in messages[:-1]]
    if not texts:
        lines = re.split(r"[\r\n]+", text_of(messages[0]))[:-1]
        texts = [line for line in lines if line.strip(" <>") and not line.startswith("<<<")]
    last = [f"The last answer ended: {_clip(texts[-1][-100:])}"] if texts else []
    return "\n".join(["The conversation in short:", *(f"- {_clip(text)}" for text in _spread(texts, 8)), *last])


def _stopped(text: str, stop: object) -> str:
    """Cut the text before the first stop string in it."""
    strings = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    found = [text.index(each) for each in strings if isinstance(each, str) and each and each in text]
    return text[: min(found)] if found else text


def _full_answer(question: str, used: int, window: int) -> str:
    if found := _COUNT.search(question):
        digits = re.sub(r"\D", "", found[1])[:9]
        return numbers_up_to(int(digits))
    return _short_reply(question, used=used, window=window)


def _rest(beginning: str, questions: Iterator[str], used: int, window: int) -> str:
    """Return the rest of an answer that was beginning, to one of the questions, newest first."""
    for question in questions:
        answer = _full_answer(question, used, window)
        if (at := _place(answer, beginning)) is not None:
            return answer[at:]
    return LOST


def _place(answer: str, beginning: str) -> int | None:
    """Find where an answer goes on after its beginning, or after the end of that, which stands in it once."""
    if answer.startswith(beginning):
        return len(beginning)
    for size in _TAILS:
        tail = beginning[-size:]
        if len(tail) == size and answer.count(tail) == 1:
            return answer.index(tail) + size
    return None


def _requests(messages: Sequence[Message]) -> Iterator[str]:
    return (text_of(message) for message in reversed(messages) if message.get("role") == "user")


def _last_answer(messages: Sequence[Message]) -> str:
    return next((text_of(each) for each in reversed(messages[:-1]) if each.get("role") == "assistant"), "")


def _spread(items: Sequence[str], most: int) -> Sequence[str]:
    """Return at most so many items, evenly taken from first to last."""
    if len(items) <= most:
        return items
    return [items[at * (len(items) - 1) // (most - 1)] for at in range(most)]


def _clip(text: str) -> str:
    """Return the beginning of a text in one line, without a mark in brackets before it."""
    flat = " ".join(re.sub(r"^\s*\[[^\]]*\]", "", text).split())
    return flat if len(flat) <= 100 else flat[:100].rsplit(" ", 1)[0] + " …"


def _short_reply(question: str, *, used: int, window: int) -> str:
    """A reply to a short message; `used` and `window` are in tokens."""
    flat = " ".join(question.split())
    quoted = f'You wrote: "{flat[:80]}{"…" if len(flat) > 80 else ""}"\n\n' if flat else "\n\n"
    fill = f"This prompt takes {used:,} of my {window:,} tokens: my window is {used * 100 // window}% full."
    return (
        f"I am Spillway's built-in demo: a script, not a language model. {quoted}{_ABOUT}\n\n{_REAL}\n\n{fill} {_TRY}"
    )


def numbers_up_to(last: int) -> str:
    """The numbers from 1 to `last`, at most `LARGEST_COUNT`."""
    last = max(1, min(last, LARGEST_COUNT))
    numbers = ", ".join(map(str, range(1, last + 1)))
    return f"This is Spillway's demo model, counting to {last:,}.\n\n{numbers}.\n\nThat was all of it."
