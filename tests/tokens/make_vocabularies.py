"""Make the packed vocabularies from pinned packages: `python -m tests.tokens.make_vocabularies WHEEL...`.

The arguments are wheels fetched beforehand:

    pip download --no-deps litellm==1.109.1 dashscope==2.0.2 mistral-common==1.13.1

What is taken out of them is checked against a digest, so any version that carries the same files will do.
"""

import base64
import hashlib
import json
import lzma
import struct
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.gguf import read_metadata

SPACE = "\u2581"
PHI3 = Path(__file__).parents[1] / "engine" / "vocab" / "ggml-vocab-phi-3.gguf"
DATA = Path(__file__).parents[2] / "proxy" / "tokens" / "data"


@dataclass(frozen=True, slots=True)
class Source:
    """A file in a wheel, its sha256, and how to read its tokens in rank order."""

    name: str
    wheel: str
    path: str
    sha256: str
    read: Callable[[bytes], Sequence[bytes]]


def read_tiktoken(data: bytes) -> list[bytes]:
    """Lines of base64 token and rank; ranks not in use become b""."""
    ranked = {int(rank): base64.b64decode(token) for token, rank in map(bytes.split, data.split(b"\n")[:-1])}
    return [ranked.get(rank, b"") for rank in range(max(ranked) + 1)]


def read_tekken(data: bytes) -> list[bytes]:
    """Mistral's JSON; the last ranks make room for its special tokens."""
    parsed = json.loads(data)
    config = parsed["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranked = {entry["rank"]: base64.b64decode(entry["token_bytes"]) for entry in parsed["vocab"]}
    return [ranked[rank] for rank in range(size)]


def read_tokenizer_json(data: bytes) -> list[bytes]:
    """Byte-level merges of a `tokenizer.json`, in their order after the 256 bytes."""
    merges = (merge.split(" ", 1) for merge in json.loads(data)["model"]["merges"])
    letters = _letters()
    single = [bytes((byte,)) for byte in range(256)]
    return [*single, *(bytes(letters[letter] for letter in left + right) for left, right in merges)]


def read_sentencepiece(data: bytes) -> list[bytes]:
    """Ordinary pieces of a SentencePiece model, best score first, with plain spaces.

    The model is a protocol buffer: field 1 of it are the pieces; of a piece field 1 is the text, 2 the score
    (float), 3 the type (1, the default, is ordinary).
    """
    pieces = []
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = dict(fields(value))
            if piece.get(3, 1) == 1:
                pieces.append((-struct.unpack("<f", piece[2])[0], piece[1].decode()))
    pieces.sort(key=lambda scored: scored[0])
    return [text.replace(SPACE, " ").encode() for _, text in pieces]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protocol buffer: int, or bytes for all else."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            size, at = varint(data, at)
        else:
            size = 8 if tag & 7 == 1 else 4
        yield tag >> 3, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


LITELLM = "litellm/litellm_core_utils/tokenizers/"
SOURCES = (
    Source(
        "o200k", "litellm", LITELLM + "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", read_tiktoken,
    ),
    Source(
        "cl100k", "litellm", LITELLM + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", read_tiktoken,
    ),
    Source(
        "deepseek", "litellm", LITELLM + "deepseek_tokenizer.json",
        "4607b3d1929c5ca263a81d7153c6d6ecdbc71c9e933c0fb2df2abf181bf6df61", read_tokenizer_json,
    ),
    Source(
        "qwen", "dashscope", "dashscope/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186", read_tiktoken,
    ),
    Source(
        "tekken", "mistral_common", "mistral_common/data/tekken_240718.json",
        "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516", read_tekken,
    ),
    Source(
        "mistral", "mistral_common", "mistral_common/data/tokenizer.model.v1",
        "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055", read_sentencepiece,
    ),
)  # fmt: skip


def _letters() -> dict[str, int]:
    """Bytes as GPT-2 spells them: printable ones stand for themselves, the rest for characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(rest)}


def of_llama2(mistral: Sequence[bytes]) -> list[bytes]:
    """Those of Mistral's pieces that are made of Llama 2's characters, and these, as Phi-3's tokenizer shows them.

    Its other pieces are not taken: the licence of Llama 2 does not allow it.
    """
    told = read_metadata(PHI3)
    texts, types = told["tokenizer.ggml.tokens"], told["tokenizer.ggml.token_type"]
    assert isinstance(texts, list)
    assert isinstance(types, list)
    own = [str(text).replace(SPACE, " ") for text, kind in zip(texts, types, strict=True) if kind == 1]
    characters = {piece for piece in own if len(piece) == 1}
    kept = [piece for piece in mistral if characters.issuperset(piece.decode())]
    return [*kept, *(char.encode() for char in sorted(characters - {piece.decode() for piece in kept}))]


LLAMA3 = {
    "CYRILLIC": 5651, "CJK": 3517, "ARABIC": 3339, "ASCII": 2624, "HANGUL": 1978, "LATIN": 1347, "GREEK": 1346, "THAI": 1328,
    "VIETNAMESE": 1039, "DEVANAGARI": 969, "TURKISH": 950, "CZECH": 857, "BYTES": 579, "OTHER": 562, "HIRAGANA": 459,
    "GERMAN": 349, "KATAKANA": 324, "PERSIAN": 283, "UKRAINIAN": 130, "FULLWIDTH": 26, "HALFWIDTH": 37,
}  # fmt: skip
"""Tokens that Llama 3 has beyond cl100k's, by script: counted in the wheel `llama-models` 0.3.0."""
LETTERS = {
    "VIETNAMESE": "ăđơưĂĐƠƯ" + "".join(map(chr, range(0x1EA0, 0x1F00))), "CZECH": "ěřůčšžťďňŘŠŽČ", "TURKISH": "ğışİŞĞ",
    "GERMAN": "äöüß", "UKRAINIAN": "іїєґІЇЄҐ", "PERSIAN": "پچژگکی",
}  # fmt: skip


def of_llama3(cl100k: Sequence[bytes], o200k: Sequence[bytes]) -> list[bytes]:
    """The first of o200k's tokens that cl100k lacks, as many of each script as Llama 3 has; none is looked up in it."""
    known, left, taken = set(cl100k), dict(LLAMA3), []
    for token in o200k:
        script = script_of(token)
        if token and token not in known and left.get(script, 0):
            left[script] -= 1
            taken.append(token)
    return taken


def script_of(token: bytes) -> str:
    """The script of a token's first letter that is not ASCII, or the language that this letter tells."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "BYTES"
    for char in text:
        if not char.isascii() and unicodedata.category(char)[0] in "LM":
            own = (language for language, letters in LETTERS.items() if char in letters)
            return next(own, unicodedata.name(char, "?").split()[0])
    return "ASCII" if text.isascii() else "OTHER"


def pack(tokens: Sequence[bytes]) -> bytes:
    """Pack tokens, whose places are their ranks, as `proxy.tokens.vocabulary.unpack` reads them."""
    # A column of lengths before the bytes compresses better than the two interleaved, and xz better than gzip.
    body = len(tokens).to_bytes(4, "big") + bytes(map(len, tokens)) + b"".join(tokens)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    return b"SPV1" + lzma.compress(body, format=lzma.FORMAT_XZ, filters=filters)


def extract(source: Source, wheels: Sequence[Path]) -> bytes:
    """The file of `source` from one of `wheels`.

    Raises:
        SystemExit: no wheel has it, or its digest differs.
    """
    for wheel in wheels:
        if wheel.name.startswith(source.wheel):
            with zipfile.ZipFile(wheel) as archive:
                data = archive.read(source.path)
            if hashlib.sha256(data).hexdigest() != source.sha256:
                sys.exit(f"{source.path} in {wheel.name} is not the file expected")
            return data
    return sys.exit(f"no wheel of {source.wheel} was given")


def main(arguments: Sequence[str]) -> None:
    wheels = [Path(argument) for argument in arguments]
    made = {source.name: source.read(extract(source, wheels)) for source in SOURCES}
    derived = {"llama2": of_llama2(made["mistral"]), "llama3": of_llama3(made["cl100k"], made["o200k"])}
    for name, tokens in {**made, **derived}.items():
        packed = pack(tokens)
        (DATA / f"{name}.spv").write_bytes(packed)
        sys.stdout.write(f"{name}: {len(tokens)} tokens, {len(packed)} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
