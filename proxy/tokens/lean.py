"""The form in which vocabularies are shipped: token lengths, then token bytes, in rank order, compressed.

A column of lengths before the bytes compresses better than the two interleaved, and xz better than gzip.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence

MAGIC = b"SPV1"
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0},)


def pack(tokens: Sequence[bytes]) -> bytes:
    """Pack tokens; the rank of each is its place. Tokens are 1 to 255 bytes long, b"" is a rank not in use.

    Raises:
        ValueError: a token is longer than 255 bytes.
    """
    body = len(tokens).to_bytes(4, "big") + bytes(map(len, tokens)) + b"".join(tokens)
    return MAGIC + lzma.compress(body, format=lzma.FORMAT_XZ, filters=_FILTERS)


def unpack(data: bytes, most: int | None = None) -> dict[bytes, int]:
    """Ranks by token; `most`: of the first so many only, which are a vocabulary too, made of the first merges.

    Raises:
        ValueError: not in this form, or damaged.
    """
    if data[:4] != MAGIC:
        raise ValueError("not a packed vocabulary")
    try:
        body = lzma.decompress(data[4:])
    except lzma.LZMAError as error:
        raise ValueError("a packed vocabulary is damaged") from error
    count = int.from_bytes(body[:4], "big")
    lengths, at = body[4 : 4 + count], 4 + count
    if at + sum(lengths) != len(body):
        raise ValueError("a packed vocabulary is damaged")
    ranks = {}
    for rank, length in enumerate(lengths[:most]):
        if length:
            ranks[body[at : at + length]] = rank
            at += length
    return ranks
