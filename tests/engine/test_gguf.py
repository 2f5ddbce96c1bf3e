from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.engine.gguf import Dtype, Kind, Writer, read_metadata


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_metadata_survives_being_written_and_read(path: Path) -> None:
    writer = Writer()
    writer.put("a.text", Kind.STR, "naïve \u2028 text")
    writer.put("a.number", Kind.U32, 4096)
    writer.put("a.switch", Kind.BOOL, value=True)
    writer.put("a.fraction", Kind.F32, 0.5)
    writer.put_array("a.words", Kind.STR, ["one", "", "three"])
    writer.put_array("a.types", Kind.I32, [1, -3])
    writer.write(path)
    assert read_metadata(path) == {
        "a.text": "naïve \u2028 text",
        "a.number": 4096,
        "a.switch": True,
        "a.fraction": 0.5,
        "a.words": ["one", "", "three"],
        "a.types": [1, -3],
    }


def test_tokens_that_are_no_text_survive(path: Path) -> None:
    writer = Writer()
    writer.put("a.token", Kind.STR, b"\xff\xfe".decode("utf-8", "surrogateescape"))
    writer.write(path)
    assert str(read_metadata(path)["a.token"]).encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_tensors_are_aligned_and_listed_innermost_dimension_first(path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer = Writer()
    writer.tensor("first", values)
    writer.tensor("second", values, Dtype.F16)
    writer.write(path)
    data = path.read_bytes()
    assert len(data) % 32 == 0
    listed = data.index(b"second") + len(b"second")
    rank, *dimensions, dtype, offset = struct.unpack_from("<IQQIQ", data, listed)
    assert (rank, dimensions, dtype, offset) == (2, [3, 2], Dtype.F16, 32)
    start = len(data) - 64
    assert np.frombuffer(data[start : start + 24], "<f4").tolist() == [0, 1, 2, 3, 4, 5]
    assert np.frombuffer(data[start + 32 : start + 44], "<f2").tolist() == [0, 1, 2, 3, 4, 5]


def test_q8_0_is_a_scale_and_32_bytes_per_block(path: Path) -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    writer = Writer()
    writer.tensor("quantised", values, Dtype.Q8_0)
    writer.write(path)
    blocks = np.frombuffer(path.read_bytes()[-96:][:68], dtype=[("d", "<f2"), ("q", "i1", 32)])
    back = (blocks["d"][:, None] * blocks["q"]).reshape(1, 64)
    assert np.abs(back - values).max() < 1 / 127


def test_rows_that_are_no_whole_blocks_are_stored_in_half_precision(path: Path) -> None:
    writer = Writer()
    writer.tensor("narrow", np.ones((1, 16), np.float32), Dtype.Q8_0)
    writer.write(path)
    assert np.frombuffer(path.read_bytes()[-32:], "<f2").tolist() == [1.0] * 16


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"GGUF\x01\x00\x00\x00"])
def test_other_files_are_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ValueError, match="GGUF"):
        read_metadata(path)
