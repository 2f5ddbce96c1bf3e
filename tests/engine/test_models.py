"""What the generated files hold. That they also work is for `test_server.py`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest

from tests.engine.bpe import byte_letters, train
from tests.engine.gguf import Kind, TokenType, Writer, read_metadata
from tests.engine.models import write_model
from tests.engine.spec import ModelSpec
from tests.engine.vocab import MARKS, Vocab, file_vocab


def test_training_joins_the_most_frequent_pair_first() -> None:
    assert train("low low low lower lowest newest", 3) == [("l", "o"), ("lo", "w"), ("\u0120", "low")]


def test_training_stops_when_no_pair_occurs_twice() -> None:
    assert train("abc", 100) == []


def test_every_byte_has_a_printable_letter() -> None:
    letters = byte_letters()
    assert len(set(letters.values())) == 256
    assert all(letter.isprintable() for letter in letters.values())


def test_walk_file(tmp_path: Path) -> None:
    words = write_model(ModelSpec(ctx=4096), tmp_path / "walk.gguf")
    metadata = read_metadata(tmp_path / "walk.gguf")
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 4096
    assert metadata["llama.vocab_size"] == len(tokens) <= 4096
    assert metadata["tokenizer.ggml.eos_token_id"] == tokens.index("<|im_end|>")
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert "@" not in cast("str", metadata["tokenizer.chat_template"])
    assert len(set(words)) == len(words) > 500
    assert all("\u0120" + word in tokens for word in words)


def test_same_arguments_make_the_same_bytes(tmp_path: Path) -> None:
    spec = ModelSpec(vocab_size=1024, words=64)
    write_model(spec, tmp_path / "one.gguf")
    write_model(spec, tmp_path / "two.gguf")
    write_model(dataclasses.replace(spec, seed=2), tmp_path / "other.gguf")
    one, two, other = ((tmp_path / f"{name}.gguf").read_bytes() for name in ("one", "two", "other"))
    assert one == two != other
    assert len(one) == len(other)


def test_echo_template_has_a_marker_for_each_token_compared(tmp_path: Path) -> None:
    assert write_model(ModelSpec(mode="echo", order=4, vocab_size=512), tmp_path / "echo.gguf") == []
    metadata = read_metadata(tmp_path / "echo.gguf")
    template = cast("str", metadata["tokenizer.chat_template"])
    assert template.count("ns.turn % 128") == 3 * 4  # assistant, other roles, generation prompt
    assert f"<|t{MARKS - 1}|>" in cast("list[str]", metadata["tokenizer.ggml.tokens"])
    assert "reasoning_content" not in template


def test_think_template_knows_reasoning(tmp_path: Path) -> None:
    write_model(ModelSpec(mode="echo", think=True, vocab_size=512), tmp_path / "think.gguf")
    assert "reasoning_content" in cast("str", read_metadata(tmp_path / "think.gguf")["tokenizer.chat_template"])


def test_a_template_may_know_nothing_of_tools(tmp_path: Path) -> None:
    write_model(ModelSpec(mode="echo", tools=False, vocab_size=512), tmp_path / "plain.gguf")
    template = cast("str", read_metadata(tmp_path / "plain.gguf")["tokenizer.chat_template"])
    assert "tool" not in template
    assert template.count("ns.turn % 128") == 3 * 6


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    write_model(ModelSpec(vocab_size=1024, template=tmp_path / "chat.jinja"), tmp_path / "own.gguf")
    assert read_metadata(tmp_path / "own.gguf")["tokenizer.chat_template"] == "{{ messages[0].content }}"


def _sentencepiece(path: Path) -> Path:
    """A vocab-only file of the other common tokenizer, with as many words as a walk needs."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["<unk>", *letters, *("\u2581" + letter * 4 for letter in letters)]
    vocab = Vocab(
        model="llama",
        pre=None,
        tokens=tokens,
        types=[TokenType.NORMAL] * len(tokens),
        scores=[-float(number) for number in range(len(tokens))],
        meta={"unknown_token_id": 0, "add_space_prefix": True},
    )
    writer = Writer()
    writer.put("general.architecture", Kind.STR, "llama")
    vocab.write(writer, end_of_text=0, end_of_turn=0)
    writer.write(path)
    return path


def test_vocabulary_of_another_file(tmp_path: Path) -> None:
    file = _sentencepiece(tmp_path / "vocab.gguf")
    words = write_model(ModelSpec(vocab=file), tmp_path / "walk.gguf")
    assert sorted(words) == [letter * 4 for letter in "abcdefghijklmnopqrstuvwxyz"]
    vocab = file_vocab(tmp_path / "walk.gguf")
    assert vocab.model == "llama"
    assert vocab.pre is None
    assert vocab.scores is not None
    assert len(vocab.scores) == len(vocab.tokens) == len(vocab.types)
    assert vocab.meta["add_space_prefix"] is True


def test_markers_take_no_space_prefix(tmp_path: Path) -> None:
    file = _sentencepiece(tmp_path / "vocab.gguf")
    write_model(ModelSpec(mode="echo", vocab=file), tmp_path / "echo.gguf")
    assert file_vocab(tmp_path / "echo.gguf").meta["add_space_prefix"] is False


def test_impossible_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few whole words"):
        write_model(ModelSpec(words=3, vocab_size=512), tmp_path / "walk.gguf")
    with pytest.raises(ValueError, match="order 6 needs an embedding of at least 129"):
        write_model(ModelSpec(mode="echo", embd=64, vocab_size=512), tmp_path / "echo.gguf")
