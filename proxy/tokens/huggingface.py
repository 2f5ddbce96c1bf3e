"""A user's `tokenizer.json`, counted by the library that wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proxy.counting.chunks import chunks
from proxy.tokens.vocabulary import CoarseVocabulary, Vocabulary, clean

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SAMPLE = "Does it count? 1,234 x_y\n\n\tna\u00efve \u6f22\u5b57 \U0001f600"
_T = TypeVar("_T")
LARGEST = 256 * 2**20
"""Bytes of the largest `tokenizer.json` that is read; those of models have up to 35 MB."""


class HuggingFaceVocabulary:
    """Counts with the `tokenizers` library: exact for whatever it can load, 3 to 5 times slower than tiktoken."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.id = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Tokens of `text`; about, where the tokenizer has none for something in it and fails."""
        try:
            return self.exact(text)
        except ValueError:
            return CoarseVocabulary().count(text)

    def exact(self, text: str) -> int:
        """Tokens of `text`.

        Raises:
            ValueError: the tokenizer fails on this text.
        """
        pieces = list(chunks(clean(text)))
        # In a batch, because that lets go of Python's lock.
        encoded = _guarded(lambda: self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
        return sum(len(one.ids) for one in encoded)


def load_tokenizer_json(path: Path, name: str) -> Vocabulary:
    """Build the vocabulary of a `tokenizer.json`; takes up to 3 s.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not a tokenizer, or one that can't even count a few words.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - 35 ms and 40 MB that only few need

    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    data = path.read_bytes()
    tokenizer = _guarded(lambda: Tokenizer.from_buffer(data))
    # Files of embedding models ask for all texts to be made equally long.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = HuggingFaceVocabulary(name, tokenizer)
    vocabulary.exact(_SAMPLE)
    return vocabulary


def _guarded(call: Callable[[], _T]) -> _T:
    """The result of a call into the library.

    Raises:
        ValueError: it failed, in whichever way.
    """
    try:
        return call()
    except BaseException as error:
        # The library raises bare Exception, and panics as pyo3_runtime.PanicException: no Exception, and in no
        # module from which it could be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(f"not a tokenizer: {error}") from error
        raise
