import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from proxy.tokens.counter import Vocabulary
from proxy.tokens.meter import Meter
from proxy.tokens.vocabulary import Coarse, Library, from_file
from tests.tokens.probe import probe, sections

UNPARSABLE = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
"""A normalizer on which the library panics when it loads the file."""
ENDLESS = {"type": "FixedLength", "length": 0}
"""A pre-tokenizer on which it panics with the first text."""


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    steps = [
        pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sections().values(), trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.ByteFallback()
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator((word for text in sections().values() for word in text.split(" ")), trainer)
    return tokenizer


def words(known: str = "<unk>") -> Tokenizer:
    """Whole words only; `known` is one of them."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, known: 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def write(tokenizer: Tokenizer, path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(tokenizer.to_str()) | changes))
    return path


def load(tokenizer: Tokenizer, path: Path, **changes: Any) -> Vocabulary:
    return from_file("mine", write(tokenizer, path / "tokenizer.json", **changes))


@pytest.mark.parametrize("make", [byte_level, sentencepiece, words])
def test_counts_as_its_library(make: Any, tmp_path: Path) -> None:
    tokenizer = make()
    vocabulary = load(tokenizer, tmp_path)
    assert vocabulary.id == "mine"
    expected = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in probe()]
    assert [vocabulary.count(text) for text in probe()] == expected


def test_any_text_is_counted(tmp_path: Path) -> None:
    vocabulary = load(byte_level(), tmp_path)
    assert vocabulary.count("") == 0
    assert vocabulary.count("\ud800") > 0
    assert vocabulary.count("word " * 50_000) == pytest.approx(50_000 * vocabulary.count(" word"), rel=0.01)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": {"type": "BPE"}}', "\x00"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="not a tokenizer"):
        from_file("x", tmp_path / "tokenizer.json")


def test_a_tokenizer_that_knows_no_common_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Missing"):
        load(words(known="b"), tmp_path)


def test_a_text_on_which_the_tokenizer_fails_is_counted_coarsely(tmp_path: Path) -> None:
    known = {*map(chr, range(32, 127)), *"\n\tï漢字😀"}
    model = {"type": "Unigram", "unk_id": None, "vocab": [[letter, -1.0] for letter in sorted(known)]}
    vocabulary = load(byte_level(), tmp_path, model=model, pre_tokenizer=None)
    assert vocabulary.count("abc") == 3
    text = "Ω" * 30
    assert vocabulary.count(text) == Coarse().count(text)


@pytest.mark.anyio
@pytest.mark.parametrize("changes", [{"normalizer": UNPARSABLE}, {"pre_tokenizer": ENDLESS}, {"model": None}])
async def test_a_request_is_measured_although_the_users_file_is_broken(tmp_path: Path, changes: dict[str, Any]) -> None:
    path, key = write(byte_level(), tmp_path / "tokenizer.json", **changes), ("local", "mine")
    meter = Meter(library=(library := Library()))
    meter.model(key).resolve(override=str(path))
    estimate = await meter.measure(key, {"messages": [{"role": "user", "content": sections()["english"]}]})
    assert estimate.source == "calibrated"
    assert estimate.tokens > 100
    assert library.get("general") is not None
    assert "tokenizer.json" in meter.describe(key)["family"]
    assert "problem" in meter.describe(key)
    assert "not a tokenizer" in meter.describe(key)["problem"]


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{")
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match="more than"):
        from_file("mine", path)
