import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.counter import by_area, dimensions, image_rule

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 640, 480) + b"\x08\x06\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + bytes(20)
APP = b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)
JPEG = b"\xff\xd8" + APP + b"\xff\xff\xc2" + struct.pack(">HBHH", 17, 8, 768, 1024) + bytes(20)


def url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PNG, (640, 480)), (GIF, (320, 200)), (JPEG, (1024, 768)),
    ],
)  # fmt: skip
def test_reads_the_dimensions_of_each_format(data: bytes, size: tuple[int, int]) -> None:
    assert dimensions(url(data)) == size
    assert dimensions(base64.b64encode(data).decode()) == size


@pytest.mark.parametrize(
    "source",
    [
        "", "https://example.org/a.png", "data:image/png,abc", "data:", "data:;base64,", "%%%", "abc", url(b"\xff\xd8\xff"),
        "data:image/png;base64,A===", url(b"\xff\xd8\x00" + bytes(20)), url(b"RIFF\x00\x00\x00\x00WEBPALPH" + bytes(20)),
    ],
)  # fmt: skip
def test_tells_when_they_cannot_be_read(source: str) -> None:
    assert dimensions(source) is None


@given(st.binary(max_size=200), st.sampled_from([PNG, GIF, JPEG]), st.integers(0, 40))
def test_damaged_files_never_raise(noise: bytes, start: bytes, kept: int) -> None:
    dimensions(url(start[:kept] + noise))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("qwen2.5-vl-7b", 640 * 480 / 784), ("gemma-3-12b", 256), ("gemma3:4b", 256), ("whatever", 640 * 480 / 784),
    ],
)  # fmt: skip
def test_each_family_has_its_rule(model: str, tokens: float) -> None:
    assert image_rule(model)((640, 480)) == pytest.approx(tokens)


def test_area_is_bounded() -> None:
    assert by_area((1, 1)) == 64
    assert by_area((100_000, 100_000)) == 4096
