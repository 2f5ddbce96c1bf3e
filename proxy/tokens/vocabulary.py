"""Vocabularies: tiktoken's engine for the shipped ones, the `tokenizers` library for the user's own files."""

import asyncio
import lzma
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tiktoken

from proxy.tokens.counter import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK, REACH = 64 * 1024, 4 * 1024
"""Characters after which a text is cut for the engine, and characters after that in which a place to cut is searched."""
LARGEST = 256 * 2**20
"""Largest `tokenizer.json` that is read, in bytes; those of models have up to 35 MB."""
_PLACE = re.compile(r"(?<=\n)(?=[^\W\d_])|(?<=[^\W\d_])(?= [^\W\d_])")
_SPACE = "\u2581"
_SAMPLE = "Does it count? 1,234 x_y\n\n\tna\u00efve \u6f22\u5b57 \U0001f600"
_T = TypeVar("_T")


class ByteLevel:
    """Byte pair encoding by tiktoken over a shipped vocabulary, split by the regex of the model's own tokenizer.

    `shipped`: its parts, in order; by default one with its own name. `most`: number of its first tokens to use. These form
    a valid vocabulary too, made of the first merges.
    """

    def __init__(self, name: str, pattern: str, *shipped: str, most: int | None = None) -> None:
        self.id = name
        tokens = [token for part in shipped or (name,) for token in unpack(part)]
        ranks = {token: rank for rank, token in enumerate(tokens[:most]) if token}
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        ranks.clear()  # tiktoken keeps it for the names of tokens, besides three copies: this frees 28 of 68 MB
        self._encode = encoding.encode_ordinary

    def count(self, text: str) -> int:
        """Count the tokens of `text`; special tokens spelt in it are plain text."""
        pieces = chunks(text) if len(text) > CHUNK else (text,)
        return sum([len(self._encode(piece)) for piece in pieces])


class Tokenizers:
    """Counts by the `tokenizers` library: exact for whatever it can load, 3 to 5 times slower than tiktoken."""

    def __init__(self, name: str, tokenizer: "Tokenizer") -> None:
        self.id = name
        # Tokenizer files of embedding models pad or truncate all texts to the same length.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Count the tokens of `text`, or estimate them from its bytes if the tokenizer fails on it."""
        pieces = [chunk for chunk in chunks(_without_surrogates(text)) if chunk]
        try:  # in a batch, because that releases the interpreter's lock
            encoded = _guarded(lambda: self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
        except ValueError:
            return Coarse().count(text)
        return sum(len(one.ids) for one in encoded)


class Coarse:
    """Estimate of four bytes per token, used while no vocabulary is loaded."""

    id = "coarse"

    def count(self, text: str) -> int:
        """Estimate the tokens of `text`."""
        return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def unpack(name: str) -> list[bytes]:
    """Read the tokens of a shipped vocabulary in the order of their ranks; b"" is a rank not in use.

    The form: "SPV1", then compressed by xz their number (4 bytes), a byte of length for each, and their bytes.
    """
    from proxy.tokens import data  # noqa: PLC0415 - so that tests see when the first one is read

    body = lzma.decompress(resources.files(data).joinpath(f"{name}.spv").read_bytes()[4:])
    number = int.from_bytes(body[:4], "big")
    at, tokens = 4 + number, []
    for length in body[4:at]:
        tokens.append(body[at : at + length])
        at += length
    return tokens


def sentencepiece(name: str) -> Vocabulary:
    """Build a SentencePiece vocabulary with byte fallback from shipped pieces, which are in the order of merging."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers  # noqa: PLC0415 - see `from_file`

    pieces = [piece.decode().replace(" ", _SPACE) for piece in unpack(name)]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    pairs = ((piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece)))
    merges = [(left, right) for left, right in pairs if left in ranks and right in ranks]
    for token in (f"<0x{byte:02X}>" for byte in range(256)):
        ranks.setdefault(token, len(ranks))
    tokenizer = Tokenizer(models.BPE(ranks, merges, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    # No piece contains a space after another character, so words can be merged one by one, and the library can cache
    # them.
    words = Regex(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    return Tokenizers(name, tokenizer)


def from_file(name: str, path: Path) -> Vocabulary:
    """Build the vocabulary of a `tokenizer.json`; takes up to 3 s.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not a tokenizer, or one that can't even count a few words.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - 35 ms and 40 MB that only few need

    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    tokenizer = _guarded(partial(Tokenizer.from_buffer, path.read_bytes()))
    _guarded(partial(tokenizer.encode, _SAMPLE))
    return Tokenizers(name, tokenizer)


def chunks(text: str, size: int = CHUNK, reach: int = REACH) -> Iterator[str]:
    """Split `text` into pieces of about `size` characters; joined they are `text` again.

    Cuts come before a word, where vocabularies begin a new token in any case; in text without words they come
    anywhere and cost a few tokens each. That keeps the engines' time linear and their regexes within bounds.
    """
    start = 0
    while len(text) - start > size + reach:
        at = start + size
        place = _PLACE.search(text, at, at + reach)
        end = place.start() if place else at
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _without_surrogates(text: str) -> str:
    """Pair or replace lone surrogates, which no tokenizer takes and JSON may hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _guarded(call: Callable[[], _T]) -> _T:
    """Call into the library.

    Raises:
        ValueError: it failed, in whichever way.
    """
    try:
        return call()
    except BaseException as error:  # it panics as `pyo3_runtime.PanicException`, in no module to import that from
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"not a tokenizer: {error}") from error


class Library:
    """Loads vocabularies by name. A load that failed is not tried again; its reason is in `failures`."""

    def __init__(self) -> None:
        self._loaded: dict[str, Vocabulary] = {}
        self._loading = asyncio.Lock()
        self.failures: dict[str, str] = {}

    def get(self, name: str) -> Vocabulary | None:
        """Return the vocabulary, or None if it is not in memory."""
        return self._loaded.get(name)

    async def load(self, name: str, load: Callable[[], Vocabulary]) -> Vocabulary | None:
        """Load a vocabulary in a thread, one at a time; return None if it cannot be loaded."""
        async with self._loading:
            if name not in self._loaded and name not in self.failures:
                try:
                    self._loaded[name] = await asyncio.to_thread(load)
                except Exception as error:  # noqa: BLE001 - a broken file of the user's must not stop the proxy
                    self.failures[name] = str(error)
        return self._loaded.get(name)
