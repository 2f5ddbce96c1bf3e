"""A user's `tokenizer.json`: on tiktoken's engine where that counts the same, else by its own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from proxy.counting.chunks import chunks
from proxy.tokens.bytelevel import ranks_by_merges, ranks_by_order
from proxy.tokens.patterns import DEEPSEEK3, GPT2
from proxy.tokens.probe import probe
from proxy.tokens.sentencepiece import SentencePieceVocabulary, is_apart
from proxy.tokens.vocabulary import BpeVocabulary, Vocabulary, clean

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Original(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode_batch_fast(self, input: Any, *, add_special_tokens: bool) -> Any:  # noqa: A002 - its name there
        """Encode several texts, without holding Python's lock."""
        ...


class OriginalVocabulary:
    """Counts with the `tokenizers` library: exact for whatever it can load, 3 to 5 times slower."""

    def __init__(self, name: str, tokenizer: Original) -> None:
        self.id = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        pieces = list(chunks(clean(text)))
        encoded = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return sum(len(one.ids) for one in encoded)


def load_tokenizer_json(path: Path, name: str) -> Vocabulary:
    """Build the vocabulary of a `tokenizer.json`; takes up to 3 s and the memory of the library.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not a tokenizer.
    """
    data = path.read_bytes()
    original = OriginalVocabulary(name, _original(data))
    try:
        converted = _convert(json.loads(data), name)
    except (KeyError, TypeError, ValueError, AttributeError):
        return original
    if all(converted.count(text) == original.count(text) for text in probe()):
        return converted
    return original


def _original(data: bytes) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415 - 35 ms and 40 MB that only few need

    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"not a tokenizer: {error}") from error


def _convert(parsed: dict[str, Any], name: str) -> Vocabulary:
    """Put the tokenizer on tiktoken's engine.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is of a kind that can't be.
    """
    model = parsed["model"]
    if model["type"] != "BPE":
        raise ValueError("not BPE")
    merges = [_pair(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        vocabulary: dict[str, int] = model["vocab"]
        single = [token for token in vocabulary if len(token) == 1]
        added = [token["content"] for token in parsed["added_tokens"] if not token["special"]]
        pieces = [*single, *(left + right for left, right in merges), *filter(is_apart, added)]
        return SentencePieceVocabulary(name, pieces, prefix=_prepends(parsed))
    pattern = _pattern(parsed["pre_tokenizer"])
    composed = '"NFC"' in json.dumps(parsed.get("normalizer"))
    if model.get("ignore_merges"):
        order = sorted(model["vocab"], key=model["vocab"].__getitem__)
        return BpeVocabulary(name, pattern, ranks_by_order(order), composed=composed)
    return BpeVocabulary(name, pattern, ranks_by_merges(merges), composed=composed)


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _prepends(parsed: dict[str, Any]) -> bool:
    """Whether a space is put before the text: by the normalizer in older files, else by Metaspace."""
    text = json.dumps([parsed.get("normalizer"), parsed.get("pre_tokenizer")])
    return '"Prepend"' in text or '"prepend_scheme": "first"' in text or '"add_prefix_space": true' in text


def _pattern(pre: dict[str, Any]) -> str:
    """The regex of the pre-tokenizer, if it is one, or DeepSeek's three."""
    steps = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    patterns = [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]
    if not patterns and steps[-1].get("use_regex", True):
        return GPT2
    if len(patterns) == 1:
        return str(patterns[0])
    if len(patterns) == 3 and patterns[0] == r"\p{N}{1,3}":
        return DEEPSEEK3
    raise ValueError("split in several steps")
