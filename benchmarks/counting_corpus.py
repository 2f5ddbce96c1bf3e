"""Texts and conversations for measuring counts: prose, code, tool output, scripts of many kinds; the same at every run."""

from __future__ import annotations

import argparse
import ast
import base64
import json
import random
import textwrap
import typing
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from tests.tokens.probe import sections

LANGUAGES = ("chinese", "japanese", "korean", "arabic", "hindi", "russian", "german")
CODE = (argparse, ast, json, random, textwrap, typing)
EMOJI = "😂🎉🍕🔥👍✅💀😅🫠🤷🏽⚠️❤️🇩🇪👩‍👩‍👧"


@cache
def _paragraphs() -> list[str]:
    texts = (" ".join(block.split()) for topic in sorted(topics) for block in topics[topic].split("\n\n"))
    return [text for text in texts if len(text) > 80]


@cache
def _words() -> list[str]:
    return sorted({word for text in _paragraphs()[:400] for word in text.lower().split() if word.isalpha()})


@cache
def _sources() -> list[str]:
    return [Path(str(module.__file__)).read_text(encoding="utf-8") for module in CODE]


@cache
def _sentences(language: str) -> list[str]:
    text = sections()[language].replace("\n", " ")
    for mark in "。.!؟।;":
        text = text.replace(mark, mark + "\n")
    return [sentence.strip() for sentence in text.split("\n") if sentence.strip()]


class Corpus:
    """Draws texts. `size` is in characters, about."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._kinds: dict[str, Callable[[], str]] = {
            "prose": lambda: self.rng.choice(_paragraphs()) + " ",
            "code": self._code,
            "json": self._json,
            "logs": self._log,
            "csv": lambda: ",".join(f"{self.rng.uniform(-1e3, 1e3):.4f}" for _ in range(6)) + "\n",
            "base64": lambda: base64.b64encode(self.rng.randbytes(57)).decode() + "\n",
            "emoji": lambda: f"{' '.join(self.words(5))} {''.join(self.rng.choices(EMOJI, k=3))} ",
        }

    def words(self, count: int) -> list[str]:
        """Ordinary words."""
        return self.rng.choices(_words(), k=count)

    def text(self, kind: str, size: int) -> str:
        """A text of a kind or language."""
        pieces: list[str] = []
        draw = self._kinds.get(kind) or (lambda: self.rng.choice(_sentences(kind)) + " ")
        while sum(map(len, pieces)) < size:
            pieces.append(draw())
        return "".join(pieces)[:size].strip() or "ok"

    def _code(self) -> str:
        source = self.rng.choice(_sources())
        start = source.find("\n", self.rng.randrange(len(source) - 1000)) + 1
        return source[start : start + 600]

    def _json(self) -> str:
        item = {
            "id": self.rng.randrange(10**6),
            "uuid": str(uuid.UUID(int=self.rng.getrandbits(128))),
            "name": " ".join(self.words(2)),
            "score": self.rng.random(),
            "tags": self.words(3),
            "updated_at": f"2024-03-{self.rng.randint(10, 28)}T08:{self.rng.randint(10, 59)}:22Z",
            "active": self.rng.random() < 0.5,
        }
        return json.dumps(item, indent=self.rng.choice([None, 2])) + ",\n"

    def _log(self) -> str:
        level = self.rng.choice(["INFO ", "WARN ", "ERROR"])
        stamp = f"2024-03-17 08:{self.rng.randint(10, 59)}:{self.rng.randint(10, 59)},{self.rng.randint(100, 999)}"
        return (
            f"{stamp} {level} [{self.rng.choice(_words())}] {' '.join(self.words(5))} id={self.rng.getrandbits(64):x}\n"
        )


def conversation(seed: int, turns: int, size: int = 600) -> list[dict[str, Any]]:
    """A conversation of one kind: messages that begin with a system message and end with a user's or a tool's."""
    corpus = Corpus(seed)
    kind = ("coding", "chat", "data", "retrieval")[seed % 4]
    language = LANGUAGES[seed // 4 % len(LANGUAGES)] if seed % 3 else "prose"
    messages: list[dict[str, Any]] = [{"role": "system", "content": corpus.text("prose", 400)}]
    for _ in range(turns):
        messages += _TURNS[kind](corpus, language, size)
    while messages[-1]["role"] == "assistant":
        messages.pop()
    return messages


def _said(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": "\n".join(texts)}


def _coding(corpus: Corpus, language: str, size: int) -> list[dict[str, Any]]:
    found = [_said("user", corpus.text(language, size // 4))]
    if corpus.rng.random() < 0.5:
        arguments = json.dumps({"path": f"src/{corpus.words(1)[0]}.py", "line": corpus.rng.randint(1, 900)})
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        output = corpus.text(corpus.rng.choice(["code", "json", "logs"]), size)
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": "call_1", "content": output})
    return [
        *found,
        _said("assistant", corpus.text("prose", size // 2), "```python", corpus.text("code", size // 2), "```"),
    ]


def _chat(corpus: Corpus, language: str, size: int) -> list[dict[str, Any]]:
    asked = _said("user", corpus.text(corpus.rng.choice([language, language, "emoji"]), size // 2))
    return [asked, _said("assistant", corpus.text(language, size))]


def _data(corpus: Corpus, language: str, size: int) -> list[dict[str, Any]]:
    pasted = corpus.text(corpus.rng.choice(["csv", "json", "logs", "base64"]), size)
    asked = _said("user", corpus.text(language, size // 6), pasted)
    return [asked, _said("assistant", corpus.text(corpus.rng.choice(["prose", "json"]), size // 2))]


def _retrieval(corpus: Corpus, language: str, size: int) -> list[dict[str, Any]]:
    documents = [corpus.text(corpus.rng.choice(["prose", language]), size) for _ in range(corpus.rng.randint(1, 3))]
    return [
        _said("user", *documents),
        _said("assistant", corpus.text(corpus.rng.choice(["prose", language]), size // 2)),
    ]


_TURNS: dict[str, Callable[[Corpus, str, int], list[dict[str, Any]]]] = {
    "coding": _coding,
    "chat": _chat,
    "data": _data,
    "retrieval": _retrieval,
}
