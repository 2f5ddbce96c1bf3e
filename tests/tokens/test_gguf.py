from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.tokens.families import BY_ID
from proxy.tokens.gguf import load_gguf, read_metadata
from proxy.tokens.vocabulary import Vocabulary
from tests.engine.gguf import Kind, Writer
from tests.engine.vocab import own_vocab
from tests.tokens.probe import probe

KEYS = "tokenizer.ggml."
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def write(path: Path, fill: Callable[[Writer], None]) -> Path:
    writer = Writer()
    fill(writer)
    writer.write(path)
    return path


def tokenizer(model: str, tokens: list[str], types: list[int], **more: object) -> Callable[[Writer], None]:
    def fill(writer: Writer) -> None:
        writer.put("general.architecture", Kind.STR, "test")
        writer.put(KEYS + "model", Kind.STR, model)
        writer.put_array(KEYS + "tokens", Kind.STR, tokens)
        writer.put_array(KEYS + "token_type", Kind.I32, types)
        for key, value in more.items():
            if isinstance(value, str | bool):
                writer.put(KEYS + key, Kind.STR if isinstance(value, str) else Kind.BOOL, value)
            elif isinstance(value, list):
                kind = Kind.STR if isinstance(value[0], str) else Kind.F32
                writer.put_array(KEYS + key, kind, value)

    return fill


def test_reads_all_that_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", tokenizer("x", ["a", "é"], [1, 3], scores=[0.5, -1.0], flag=True))
    metadata = read_metadata(path)
    assert metadata["general.architecture"] == "test"
    assert metadata[KEYS + "tokens"] == ["a", "é"]
    assert list(metadata[KEYS + "token_type"]) == [1, 3]
    assert list(metadata[KEYS + "scores"]) == [0.5, -1.0]
    assert metadata[KEYS + "flag"] is True


def test_byte_level_merges(tmp_path: Path) -> None:
    vocab = own_vocab(1000)
    fill = tokenizer("gpt2", vocab.tokens, vocab.types, pre="gpt-2", merges=vocab.merges)
    vocabulary = load_gguf(write(tmp_path / "a.gguf", fill), "mine")
    assert vocabulary.id == "mine"
    assert vocabulary.count("the") == 1
    text = "".join(probe())
    assert len(text) // 4 < vocabulary.count(text) < len(text.encode())


def test_whole_words_win_where_merges_are_ignored(tmp_path: Path) -> None:
    tokens = ["a", "b", "c", "bc", "abc"]
    fill = tokenizer("gpt2", tokens, [1] * 5, pre="llama-bpe", merges=["b c"])
    assert load_gguf(write(tmp_path / "a.gguf", fill), "x").count("abc") == 1
    fill = tokenizer("gpt2", tokens, [1] * 5, pre="qwen2", merges=["b c"])
    assert load_gguf(write(tmp_path / "b.gguf", fill), "x").count("abc") == 2


def mistral() -> tuple[list[str], Vocabulary]:
    from importlib import resources

    from proxy.tokens.lean import unpack

    data = resources.files("proxy.tokens.data").joinpath("mistral.spv").read_bytes()
    load = BY_ID["mistral"].load
    assert load is not None
    return [token.decode().replace(" ", "▁") for token in unpack(data)], load()


def test_scored_pieces(tmp_path: Path) -> None:
    pieces, shipped = mistral()
    order = sorted(range(len(pieces)), key=lambda index: hash(pieces[index]) % 1000)  # as in no order
    tokens = ["<unk>", *BYTES, *(pieces[index] for index in order)]
    scores = [0.0] * 257 + [-float(index) for index in order]
    fill = tokenizer("llama", tokens, [2] + [6] * 256 + [1] * len(pieces), scores=scores)
    vocabulary = load_gguf(write(tmp_path / "a.gguf", fill), "x")
    assert [vocabulary.count(text) for text in probe()] == [shipped.count(text) for text in probe()]
    fill = tokenizer(
        "llama", tokens, [2] + [6] * 256 + [1] * len(pieces), scores=scores, add_space_prefix=False
    )
    assert load_gguf(write(tmp_path / "b.gguf", fill), "x").count("▁the") == 1


def test_merged_pieces(tmp_path: Path) -> None:
    tokens = ["▁", "a", "b", "ab", "▁ab", "\n\n", "<b>", *BYTES]
    fill = tokenizer("gemma4", tokens, [1] * 5 + [4] * 2 + [6] * 256, merges=["a b", "▁ ab"])
    vocabulary = load_gguf(write(tmp_path / "a.gguf", fill), "x")
    assert [vocabulary.count(text) for text in (" ab", "ab\n\nab", "<b>ab", "ñ")] == [1, 3, 2, 2]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (tokenizer("bert", [], []), "'bert' is not known"),
        (tokenizer("gpt2", ["a"], [1], pre="falcon"), "'falcon' is not known"),
        (tokenizer("gpt2", ["a"], [1], pre="gpt-2"), "has no tokenizer.ggml.merges"),
        (tokenizer("llama", ["a"], [1], scores=[0.0]), "no byte fallback"),
        (lambda writer: None, "None is not known"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, fill: Callable[[Writer], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_gguf(write(tmp_path / "a.gguf", fill), "x")


@pytest.mark.parametrize(
    "data",
    [
        b"NOPE" * 10,
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 5),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 77),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r".+"):
        read_metadata(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(4, 300), st.binary(max_size=20))
def test_no_damage_raises_anything_else(tmp_path: Path, at: int, noise: bytes) -> None:
    path = write(tmp_path / "a.gguf", tokenizer("llama", ["a", "b"], [1, 6], scores=[0.5, -1.0]))
    data = path.read_bytes()
    path.write_bytes((data[:at] + noise + data[at + len(noise) :])[:400] or b"GGUF")
    with suppress(ValueError):
        read_metadata(path)


def head(keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, keys)


def key(kind: int) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<I", kind)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (head(1) + key(9) + struct.pack("<IQ", 9, 1) * 100_000, "nested too deeply"),
        (head(2**62), "more than"),
        (head(1) + key(9) + struct.pack("<IQ", 8, 2**62), "more than"),
        (head(1) + key(9) + struct.pack("<IQ", 9, 2**62), "more than"),
        (head(1) + key(9) + struct.pack("<IQ", 0, 2**62), "more than"),
    ],
    ids=["nested", "keys", "strings", "arrays", "bytes"],
)
def test_a_file_that_would_take_for_ever_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    """What follows is a terabyte of zeros, none of which is on the disk: empty strings, empty arrays, empty keys."""
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match=says):
        read_metadata(path)


PIECES = st.one_of(
    st.sampled_from(
        ["", "▁", "▁▁", "\n\n", "\t\t", "<b>", "</b>", "a", "ab", "é", "\ud800", "\U0001f600", "<0x00>"]
    ),
    st.text(max_size=6),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(["llama", "gemma4", "gpt2"]),
    pieces=st.lists(st.tuples(PIECES, st.sampled_from([1, 3, 4, 6])), max_size=30),
    merges=st.lists(st.sampled_from(["a b", "▁ a", "", " ", "\n \n", "Ġ a", "é é"]), min_size=1, max_size=6),
    text=st.text(max_size=60),
)
def test_a_strange_vocabulary_is_refused_or_counts(
    tmp_path: Path, model: str, pieces: list[tuple[str, int]], merges: list[str], text: str
) -> None:
    tokens = [piece.encode("utf-8", "replace").decode() for piece, _ in pieces] + BYTES
    kinds = [kind for _, kind in pieces] + [6] * 256
    scores = [float(-at) for at in range(len(tokens))]
    fill = tokenizer(model, tokens, kinds, pre="gpt-2", merges=merges, scores=scores)
    try:
        vocabulary = load_gguf(write(tmp_path / "a.gguf", fill), "x")
    except ValueError:
        return
    assert vocabulary.count(text) >= bool(text)
