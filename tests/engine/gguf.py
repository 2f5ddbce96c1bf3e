"""GGUF files: the metadata of one is read, and a whole one is written.

The format is that of `docs/gguf.md` in the ggml repository, version 3: little-endian, strings with a 64-bit
length, tensors aligned to 32 bytes, dimensions innermost first.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Scalar: TypeAlias = str | int | float | bool
Value: TypeAlias = Scalar | list["Value"]


class Kind(IntEnum):
    """Metadata value types that are written."""

    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STR = 8
    ARRAY = 9


class Dtype(IntEnum):
    """Tensor types that are written, by ggml's numbers."""

    F32 = 0
    F16 = 1


class TokenType(IntEnum):
    """What a vocabulary entry is."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ALIGNMENT = 32


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 4

    def number(self, code: str) -> int:
        return int(self._unpack(code))

    def text(self) -> str:
        length = self.number("Q")
        self._position += length
        return self._data[self._position - length : self._position].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Value:
        if kind == Kind.STR:
            return self.text()
        if kind == Kind.ARRAY:
            item, count = self.number("I"), self.number("Q")
            return [self.value(item) for _ in range(count)]
        return self._unpack(_FORMATS[kind])

    def _unpack(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize("<" + code)
        return value


def read_metadata(path: Path) -> dict[str, Value]:
    """The keys and values of a GGUF file; its tensors are not read.

    Raises:
        ValueError: not a GGUF file of version 2 or 3.
    """
    data = path.read_bytes()
    if data[:4] != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file")
    reader = _Reader(data)
    if reader.number("I") not in {2, 3}:
        raise ValueError(f"{path}: only GGUF versions 2 and 3 are read")
    reader.number("Q")  # the number of tensors
    return {reader.text(): reader.value(reader.number("I")) for _ in range(reader.number("Q"))}


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


class Writer:
    """Collects metadata and tensors, in the order in which they will stand in the file."""

    def __init__(self) -> None:
        self._metadata: list[bytes] = []
        self._tensors: list[tuple[str, tuple[int, ...], Dtype, bytes]] = []

    def put(self, key: str, kind: Kind, value: Scalar) -> None:
        body = _string(str(value)) if kind is Kind.STR else struct.pack("<" + _FORMATS[kind], value)
        self._metadata.append(_string(key) + struct.pack("<I", kind) + body)

    def put_array(self, key: str, kind: Kind, values: Sequence[Scalar]) -> None:
        if kind is Kind.STR:
            body = b"".join(_string(str(value)) for value in values)
        else:
            body = struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values)
        self._metadata.append(_string(key) + struct.pack("<IIQ", Kind.ARRAY, kind, len(values)) + body)

    def tensor(self, name: str, values: Floats, dtype: Dtype = Dtype.F32) -> None:
        raw = np.ascontiguousarray(values, "<f2" if dtype is Dtype.F16 else "<f4").tobytes()
        self._tensors.append((name, values.shape[::-1], dtype, raw))

    def write(self, path: Path) -> None:
        parts = [b"GGUF", struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata)), *self._metadata]
        offset = 0
        for name, dimensions, dtype, raw in self._tensors:
            parts.append(_string(name) + struct.pack("<I", len(dimensions)))
            parts.append(struct.pack(f"<{len(dimensions)}QIQ", *dimensions, dtype, offset))
            offset += len(raw) + -len(raw) % _ALIGNMENT
        head = b"".join(parts)
        with path.open("wb") as file:
            file.write(head + b"\0" * (-len(head) % _ALIGNMENT))
            for *_, raw in self._tensors:
                file.write(raw + b"\0" * (-len(raw) % _ALIGNMENT))
