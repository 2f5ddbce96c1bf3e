"""Tokens of images by their dimensions, read from the first bytes of the file.

Base64 text is never counted as text: an image of 1 MB would read as 700,000 tokens and takes about 1,000.
"""

from __future__ import annotations

import base64
import binascii
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
_FIXED = re.compile(r"gemma-?3")
"""Models for which every image is 256 tokens."""


def dimensions(url: str) -> Dimensions | None:
    """Width and height of a PNG, JPEG or GIF in a `data:` URL or bare base64; else None."""
    start = url.find(",", 0, 200) + 1 if url.startswith("data:") else 0
    head = _decode(url[start : start + HEADER_BYTES * 4 // 3])
    found: Dimensions | None = None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        found = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head[:4] == b"GIF8" and len(head) >= 10:
        found = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:2] == b"\xff\xd8":
        found = _jpeg(head)
    return found if found and found[0] > 0 and found[1] > 0 else None


def _decode(text: str) -> bytes:
    text = "".join(text.split())
    try:
        return base64.b64decode(text[: len(text) // 4 * 4], validate=False)
    except (ValueError, binascii.Error):
        return b""


def _jpeg(head: bytes) -> Dimensions | None:
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if marker in _JPEG_FRAMES:
            height, width = head[position + 5 : position + 7], head[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        # A fill byte, or a segment with its length.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None


def by_area(size: Dimensions | None) -> float:
    """A token for 28 by 28 pixels: the grid of Qwen-VL and Pixtral, and about that of others."""
    return UNKNOWN if size is None else min(max(size[0] * size[1] / 784, 64), 4096)


def fixed(size: Dimensions | None) -> float:
    """Every image becomes 256 tokens."""
    del size
    return 256.0


def image_rule(model: str) -> ImageRule:
    """The rule for a model by its name."""
    return fixed if _FIXED.search(model.lower()) else by_area
