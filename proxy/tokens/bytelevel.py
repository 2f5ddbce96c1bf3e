"""Byte-level BPE as the tokenizer files of models hold it: bytes spelt as printable characters, and merges."""

from __future__ import annotations

from collections.abc import Iterable


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling: printable bytes stand for themselves, the rest for characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {chr(byte): byte for byte in plain}
    rest = (byte for byte in range(256) if byte not in plain)
    return spelling | {chr(256 + index): byte for index, byte in enumerate(rest)}


_BYTES = _alphabet()


def spelt(token: str) -> bytes | None:
    """The bytes that `token` spells; None if it is not in that spelling, as added tokens often are not."""
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return None


def ranks_by_merges(merges: Iterable[tuple[str, str]]) -> dict[bytes, int]:
    """Ranks in the order of merges, after the 256 bytes.

    Raises:
        ValueError: a merge is not in byte-level spelling.
    """
    ranks = {bytes((byte,)): byte for byte in range(256)}
    for left, right in merges:
        token = spelt(left + right)
        if token is None:
            raise ValueError("merges are not byte-level")
        ranks.setdefault(token, len(ranks))
    return ranks


def ranks_by_order(tokens: Iterable[str]) -> dict[bytes, int]:
    """Ranks in the order of the tokens themselves, those that spell no bytes left out."""
    ranks: dict[bytes, int] = {}
    for token in tokens:
        data = spelt(token)
        if data:
            ranks.setdefault(data, len(ranks))
    for byte in range(256):
        ranks.setdefault(bytes((byte,)), len(ranks))
    return ranks
