"""Vocabularies of the tiny models: one trained here, or the tokenizer of any GGUF file."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import cast

from tests.engine.bpe import byte_letters, train
from tests.engine.gguf import Kind, TokenType, Writer, read_metadata

KEYS = "tokenizer.ggml."
MARKS = 128
"""Turn markers of the echo template; a conversation of more turns uses them again."""
SPECIALS = 160
"""Vocabulary entries left free for what `add` appends."""

_META = (
    *("bos_token_id", "add_bos_token", "add_space_prefix", "unknown_token_id", "remove_extra_whitespaces"),
    "escape_whitespaces",
)


@dataclass(kw_only=True)
class Vocab:
    """Tokens, their types, and what else a tokenizer's metadata says; `add` appends what is missing."""

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    merges: list[str] | None = None
    scores: list[float] | None = None
    meta: dict[str, int | bool] = field(default_factory=dict)
    known_words: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.index = {token: number for number, token in enumerate(self.tokens)}

    @property
    def space(self) -> str:
        """The character that stands for a leading space."""
        return "\u2581" if self.model in {"llama", "gemma4"} else "\u0120"

    def add(self, token: str, kind: TokenType) -> int:
        """The number of `token`, which is now of type `kind`."""
        if token in self.index:
            self.types[self.index[token]] = kind
            return self.index[token]
        self.index[token] = len(self.tokens)
        self.tokens.append(token)
        self.types.append(kind)
        if self.scores is not None:
            self.scores.append(0.0)
        return self.index[token]

    def words(self, limit: int) -> list[int]:
        """Tokens that are a whole lower-case English word with its leading space."""
        known = self.known_words
        found = self._normal(self.space + "[a-z]{4,}")
        return [n for n in found if known is None or self.tokens[n][1:] in known][:limit]

    def write(self, writer: Writer, *, end_of_text: int, end_of_turn: int) -> None:
        writer.put(KEYS + "model", Kind.STR, self.model)
        if self.pre:
            writer.put(KEYS + "pre", Kind.STR, self.pre)
        writer.put_array(KEYS + "tokens", Kind.STR, self.tokens)
        writer.put_array(KEYS + "token_type", Kind.I32, self.types)
        if self.scores is not None:
            writer.put_array(KEYS + "scores", Kind.F32, self.scores)
        if self.merges is not None:
            writer.put_array(KEYS + "merges", Kind.STR, self.merges)
        writer.put(KEYS + "eos_token_id", Kind.U32, end_of_turn)
        writer.put(KEYS + "padding_token_id", Kind.U32, end_of_text)
        writer.put(KEYS + "add_bos_token", Kind.BOOL, value=False)
        for key, value in self.meta.items():
            if key != "add_bos_token":
                writer.put(KEYS + key, Kind.BOOL if isinstance(value, bool) else Kind.U32, value)
        if "bos_token_id" not in self.meta:
            writer.put(KEYS + "bos_token_id", Kind.U32, end_of_text)

    def _normal(self, shape: str) -> list[int]:
        pattern = re.compile(shape)
        return [
            number
            for number, token in enumerate(self.tokens)
            if self.types[number] == TokenType.NORMAL and pattern.fullmatch(token)
        ]


def own_vocab(size: int) -> Vocab:
    """A byte-level BPE of at most `size` tokens, trained on Python's own help topics and some JSON.

    The help topics are part of every Python installation and differ a little from version to version.
    """
    sample = {
        "name": "get_weather", "arguments": {"city": "Paris", "days": 3, "units": None}, "ok": True,
        "items": [{"id": 1, "path": "src/main.py"}],
    }  # fmt: skip
    text = "\n".join(topics[key] for key in sorted(topics)).encode("ascii", "ignore").decode()
    text += ("\n" + json.dumps(sample) + "\n" + json.dumps(sample, indent=2)) * 30
    merges = train(text, max(0, size - 256 - SPECIALS))
    letters = byte_letters()
    tokens = list(dict.fromkeys([*(letters[byte] for byte in range(256)), *(a + b for a, b in merges)]))
    return Vocab(
        model="gpt2", pre="gpt-2", tokens=tokens, types=[TokenType.NORMAL] * len(tokens),
        merges=[f"{a} {b}" for a, b in merges], known_words=frozenset(re.findall(r"\b[a-z]+\b", text)),
    )  # fmt: skip


def file_vocab(path: Path) -> Vocab:
    """The tokenizer of a GGUF file, such as llama.cpp's vocab-only ones."""
    metadata = read_metadata(path)
    tokens = cast("list[str]", metadata[KEYS + "tokens"])
    types = cast("list[int]", metadata.get(KEYS + "token_type")) or [TokenType.NORMAL] * len(tokens)
    return Vocab(
        model=cast("str", metadata[KEYS + "model"]),
        pre=cast("str | None", metadata.get(KEYS + "pre")),
        tokens=tokens,
        types=types,
        merges=cast("list[str] | None", metadata.get(KEYS + "merges")),
        scores=cast("list[float] | None", metadata.get(KEYS + "scores")),
        meta={key: cast("int | bool", metadata[KEYS + key]) for key in _META if KEYS + key in metadata},
    )
