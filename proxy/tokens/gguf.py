"""The tokenizer in a GGUF file, as LM Studio, llama.cpp and Ollama keep models. Only metadata is read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from proxy.tokens.bytelevel import ranks_by_merges, ranks_by_order
from proxy.tokens.patterns import BY_GGUF_NAME, IGNORE_MERGES
from proxy.tokens.sentencepiece import SentencePieceVocabulary, is_apart
from proxy.tokens.vocabulary import BpeVocabulary, Vocabulary

MAGIC = b"GGUF"
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
_STRING, _ARRAY = 8, 9
_Metadata: TypeAlias = dict[str, Any]
MOST_VALUES = 8_000_000
"""Values that are read of a file; a vocabulary of 256,000 tokens has less than a fifth of them."""
_DEEPEST = 4
"""Arrays in one another; files have none of those."""


class _Cursor:
    """A place in the mapped file that moves on as values are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._left = MOST_VALUES
        self._depth = 0
        self.at = 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.number("Q")
        if length > len(self._data) - self.at:
            raise ValueError("a string reaches beyond the end of the file")
        self.at += length
        return self._data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        return self.number(_scalar(kind))

    def spend(self, count: int) -> None:
        """Put so many values on the account.

        Raises:
            ValueError: it is overdrawn: nothing that follows could be true, and reading it would take for ever.
        """
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_VALUES} values")

    def _array(self, kind: int, count: int) -> Any:
        self.spend(count)
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            return self._arrays(count)
        code = _scalar(kind)
        size = struct.calcsize("<" + code)
        if count * size > len(self._data) - self.at:
            raise ValueError("an array reaches beyond the end of the file")
        start, self.at = self.at, self.at + count * size
        if code == "?":
            return list(self._data[start : self.at])
        return array(code, self._data[start : self.at])

    def _arrays(self, count: int) -> list[Any]:
        if self._depth >= _DEEPEST:
            raise ValueError("its arrays are nested too deeply")
        self._depth += 1
        arrays = [self.value(_ARRAY) for _ in range(count)]
        self._depth -= 1
        return arrays


def _scalar(kind: int) -> str:
    code = _SCALARS[kind] if kind < len(_SCALARS) else ""
    if not code:
        raise ValueError(f"unknown value type {kind}")
    return code


def read_metadata(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file; takes 30 to 700 ms.

    Raises:
        OSError: it can't be read.
        ValueError: it is no GGUF of version 2 or 3, or damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise ValueError("not a GGUF file")
        cursor = _Cursor(data)
        cursor.at = 4
        try:
            version, _, count = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
            if version not in {2, 3}:
                raise ValueError(f"GGUF version {version} is not supported")
            cursor.spend(count)
            return {cursor.string(): cursor.value(cursor.number("I")) for _ in range(count)}
        except (struct.error, IndexError) as error:
            raise ValueError("the file is cut short") from error


def load_gguf(path: Path, name: str) -> Vocabulary:
    """Build the vocabulary that a GGUF file holds; takes up to 3 s.

    Raises:
        OSError: the file can't be read.
        ValueError: it is damaged, or its tokenizer is of a kind not known here.
    """
    metadata = read_metadata(path)
    model = metadata.get("tokenizer.ggml.model")
    build = _BUILD.get(model) if isinstance(model, str) else None
    if build is None:
        raise ValueError(f"tokenizer model {model!r} is not known")
    try:
        return build(metadata, name)
    except KeyError as error:
        raise ValueError(f"the file has no {error.args[0]}") from error


def _byte_level(metadata: _Metadata, name: str) -> Vocabulary:
    pre = metadata.get("tokenizer.ggml.pre", "")
    if pre not in BY_GGUF_NAME:
        raise ValueError(f"pre-tokenizer {pre!r} is not known")
    tokens = metadata["tokenizer.ggml.tokens"]
    if pre in IGNORE_MERGES:
        kinds = metadata["tokenizer.ggml.token_type"]
        normal = (token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL)
        return BpeVocabulary(name, BY_GGUF_NAME[pre], ranks_by_order(normal))
    return BpeVocabulary(name, BY_GGUF_NAME[pre], ranks_by_merges(_merges(metadata)))


def _merges(metadata: _Metadata) -> list[tuple[str, str]]:
    merges = []
    for merge in metadata["tokenizer.ggml.merges"]:
        left, _, right = merge[1:].partition(" ")
        merges.append((merge[:1] + left, right))
    return merges


def _scored(metadata: _Metadata, name: str) -> Vocabulary:
    """SentencePiece with scores: Llama 2, Mistral, Phi-3, Gemma 1 to 3."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    _need_bytes(kinds)
    order = sorted(range(len(tokens)), key=lambda index: -scores[index])
    pieces = [tokens[index] for index in order if kinds[index] == _NORMAL]
    pieces += [
        token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED and is_apart(token)
    ]
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return SentencePieceVocabulary(name, pieces, prefix=prefix)


def _merged(metadata: _Metadata, name: str) -> Vocabulary:
    """SentencePiece with merges: Gemma 4."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    _need_bytes(kinds)
    single = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL and len(token) == 1]
    apart = [token for token in tokens if is_apart(token)]
    merged = [left + right for left, right in _merges(metadata)]
    return SentencePieceVocabulary(name, [*single, *merged, *apart], prefix=False)


def _need_bytes(kinds: array[int]) -> None:
    if kinds.count(_BYTE) < 256:
        raise ValueError("the vocabulary has no byte fallback")


_BUILD: dict[str, Callable[[_Metadata, str], Vocabulary]] = {
    "gpt2": _byte_level,
    "llama": _scored,
    "gemma4": _merged,
}
