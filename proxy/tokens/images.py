"""Tokens of images by their dimensions, read from the first bytes of the file.

Base64 text is never counted as text: an image of 1 MB would read as 700,000 tokens and takes about 1,000.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from typing import TypeAlias

Dimensions: TypeAlias = tuple[int, int]
"""Width and height in pixels."""
ImageRule: TypeAlias = Callable[[Dimensions | None], float]

HEADER_BYTES = 48 * 1024
"""A JPEG can have a preview and a colour profile before its frame header."""
UNKNOWN = 1000.0
"""Tokens of an image whose dimensions can't be read, for instance of one given by its URL."""
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def dimensions(url: str) -> Dimensions | None:
    """Width and height of a PNG, JPEG, WebP or GIF in a `data:` URL or bare base64; else None."""
    start = 0
    if url.startswith("data:"):
        start = url.find(",", 0, 200) + 1
        if not start or ";base64" not in url[:start]:
            return None
    elif "://" in url[:12]:
        return None
    head = _decode(url[start : start + HEADER_BYTES * 4 // 3])
    return None if head is None else _read(head)


def _decode(text: str) -> bytes | None:
    text = "".join(text.split())
    try:
        return base64.b64decode(text[: len(text) // 4 * 4], validate=False)
    except (ValueError, binascii.Error):
        return None


def _read(head: bytes) -> Dimensions | None:
    found: Dimensions | None = None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        found = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head[:4] == b"GIF8" and len(head) >= 10:
        found = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:2] == b"\xff\xd8":
        found = _jpeg(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        found = _webp(head)
    return found if found and found[0] > 0 and found[1] > 0 else None


def _jpeg(head: bytes) -> Dimensions | None:
    position = 2
    while position + 9 <= len(head):
        if head[position] != 0xFF:
            return None
        marker = head[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _JPEG_FRAMES:
            height, width = head[position + 5 : position + 7], head[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        position += 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None


def _webp(head: bytes) -> Dimensions | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = head[26:28], head[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return None


def _clamped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def by_area(size: Dimensions | None) -> float:
    """A token for 28 by 28 pixels: the most common grid, for models nobody wrote down."""
    return UNKNOWN if size is None else _clamped(size[0] * size[1] / 784, 64, 4096)


def qwen_vl(size: Dimensions | None) -> float:
    """Qwen2-VL, Qwen2.5-VL: a grid of 28 px; limits of llama.cpp."""
    if size is None:
        return UNKNOWN
    return _clamped(math.ceil(size[0] / 28) * math.ceil(size[1] / 28), 8, 4096)


def pixtral(size: Dimensions | None) -> float:
    """Pixtral, Mistral Small: a grid of 28 px with a separator for each row, longer side scaled to 1024."""
    if size is None:
        return UNKNOWN
    scale = min(1.0, 1024 / max(size))
    columns, rows = math.ceil(size[0] * scale / 28), math.ceil(size[1] * scale / 28)
    return columns * rows + rows


def gemma3(size: Dimensions | None) -> float:
    """Gemma 3: every image becomes 256 tokens."""
    del size
    return 256.0


def gemma4(size: Dimensions | None) -> float:
    """Gemma 4: 70 to 1120 tokens by area."""
    return _clamped(by_area(size), 70, 1120)


def openai_tiles(size: Dimensions | None) -> float:
    """GPT-4o class: 85 tokens and 170 for each tile of 512 px, after scaling into 2048 and to a short side of 768."""
    if size is None:
        return UNKNOWN
    scale = min(1.0, 2048 / max(size))
    scale *= min(1.0, 768 / (min(size) * scale))
    return 85.0 + 170.0 * math.ceil(size[0] * scale / 512) * math.ceil(size[1] * scale / 512)


RULES: tuple[tuple[re.Pattern[str], ImageRule], ...] = (
    (re.compile(r"qwen.*vl|qwen2vl|qwen3vl|qvq"), qwen_vl),
    (re.compile(r"pixtral|mistral-?small|mistral3|magistral"), pixtral),
    (re.compile(r"gemma-?4"), gemma4),
    (re.compile(r"gemma-?3"), gemma3),
    (re.compile(r"gpt-4o|gpt-4\.1|chatgpt-4o"), openai_tiles),
)


def image_rule(model: str) -> ImageRule:
    """The rule for a model by its name; `by_area` for those without one."""
    return next((rule for pattern, rule in RULES if pattern.search(model.lower())), by_area)
