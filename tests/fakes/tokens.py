"""A tokenizer and a chat template: deterministic, lossless, simple enough to count by hand.

A token is one of
- a special token: `<|name|>`;
- up to `letters` ASCII letters, or up to 4 digits, with the one space before them;
- up to 4 line feeds; a run of other white space;
- any other single character (punctuation, CJK, an emoji's code point, letters with accents).

A message is rendered as `<|role|>`, its content, its tool calls, and `<|end|>`, filled up to the model's
overhead with `<|.|>`. Tool schemas are rendered as JSON in front. So counts add up over messages.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from proxy.core.request import text_of
from tests.fakes.model import FakeModel, Message

IMAGE_TOKENS = 64
BOS = "<|bos|>"


class FakeTokenizer:
    """Splits text into pieces that join to the text again. `letters`: most letters per token."""

    def __init__(self, letters: int = 4) -> None:
        self._pattern = re.compile(
            rf"<\|[^|\s]{{0,24}}\|>| ?[A-Za-z]{{1,{letters}}}| ?[0-9]{{1,4}}|\n{{1,4}}|[^\S\n]+|.", re.DOTALL
        )
        self.count = lru_cache(maxsize=8192)(self._count)
        """Tokens of a text."""

    def pieces(self, text: str) -> list[str]:
        return self._pattern.findall(text)

    def _count(self, text: str) -> int:
        return len(self._pattern.findall(text))


class Template:
    """Renders chat requests for one model."""

    def __init__(self, model: FakeModel, tokenizer: FakeTokenizer) -> None:
        self._filler = "<|.|>" * (model.template_overhead - 2)
        self.tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        prefix: str | None = None,
        reasoning: str = "",
    ) -> list[str]:
        """The prompt, one part per message, ending in the partial answer or in the start of a new one."""
        head = BOS + ("<|tools|>" + orjson.dumps(list(tools)).decode() if tools else "")
        thought = f"<|think|>{reasoning}<|/think|>" if reasoning else ""
        return [head, *map(self.message, messages), f"<|assistant|>{thought}{prefix or ''}"]

    def message(self, message: Message) -> str:
        return f"<|{message.get('role', 'user')}|>{self.content(message)}{self._filler}<|end|>"

    def content(self, message: Message) -> str:
        content = message.get("content")
        if isinstance(content, str) and "tool_calls" not in message and "images" not in message:
            return content
        return _images(message) + text_of(message) + _calls(message)

    def count(self, parts: Sequence[str]) -> int:
        return sum(map(self.tokenizer.count, parts))


def _images(message: Message) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    shown = sum(1 for part in parts if isinstance(part, dict) and part.get("type") not in {"text", None})
    return "<|image|>" * (IMAGE_TOKENS * (shown + len(message.get("images") or ())))


def _calls(message: Message) -> str:
    lines = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments", "")
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        lines.append(f"<|call|>{function.get('name', '')}\n{text}")
    return "".join(lines)
