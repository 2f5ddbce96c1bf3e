from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from proxy.tokens.huggingface import OriginalVocabulary, load_tokenizer_json
from proxy.tokens.patterns import LLAMA3
from proxy.tokens.probe import probe, sections
from proxy.tokens.sentencepiece import SentencePieceVocabulary
from proxy.tokens.vocabulary import BpeVocabulary, Vocabulary


def train(pre: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sections().values(), trainer)
    return tokenizer


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    from tokenizers import Regex

    steps = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(steps)


def load(tokenizer: Tokenizer, path: Path, **changes: Any) -> Vocabulary:
    parsed = json.loads(tokenizer.to_str())
    parsed["model"].update(changes)
    path.write_text(json.dumps(parsed))
    return load_tokenizer_json(path, "mine")


def originals(tokenizer: Tokenizer) -> list[int]:
    return [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in probe()]


@pytest.mark.parametrize("composed", [False, True])
def test_a_split_by_one_regex_is_converted(tmp_path: Path, *, composed: bool) -> None:
    tokenizer = train(split(LLAMA3), normalizers.NFC() if composed else None)
    vocabulary = load(tokenizer, tmp_path / "tokenizer.json")
    assert isinstance(vocabulary, BpeVocabulary)
    assert vocabulary.id == "mine"
    assert [vocabulary.count(text) for text in probe()] == originals(tokenizer)


def test_gpt2s_own_split_is_converted(tmp_path: Path) -> None:
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    assert isinstance(load(tokenizer, tmp_path / "tokenizer.json"), BpeVocabulary)


def test_merges_may_be_ignored(tmp_path: Path) -> None:
    vocabulary = load(train(split(LLAMA3)), tmp_path / "tokenizer.json", ignore_merges=True)
    assert isinstance(vocabulary, BpeVocabulary)


def test_sentencepiece_is_converted(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.ByteFallback()
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=specials, show_progress=False)
    words = [word for text in sections().values() for word in text.split(" ")]
    tokenizer.train_from_iterator(words, trainer)
    parsed = json.loads(tokenizer.to_str())
    parsed["added_tokens"] = parsed["added_tokens"][:1]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(parsed))
    vocabulary = load_tokenizer_json(path, "mine")
    assert isinstance(vocabulary, SentencePieceVocabulary)
    assert [vocabulary.count(text) for text in probe()] == originals(Tokenizer.from_file(str(path)))


def test_what_counts_otherwise_on_tiktokens_engine_is_left_to_its_library(tmp_path: Path) -> None:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    tokenizer = train(pre_tokenizers.Sequence(steps))
    vocabulary = load(tokenizer, tmp_path / "tokenizer.json")
    assert isinstance(vocabulary, OriginalVocabulary)
    assert [vocabulary.count(text) for text in probe()] == originals(tokenizer)
    assert vocabulary.count("\ud800") > 0


def test_other_models_are_left_to_their_library(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary = load(tokenizer, tmp_path / "tokenizer.json")
    assert isinstance(vocabulary, OriginalVocabulary)
    assert vocabulary.count("a b a") == 3


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": {"type": "BPE"}}', "\x00"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="not a tokenizer"):
        load_tokenizer_json(tmp_path / "tokenizer.json", "x")
