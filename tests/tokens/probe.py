"""A text in many scripts and forms, on which tokenizers that should agree must agree."""

from functools import cache
from pathlib import Path

_RANGES = (
    (0x20, 0x7F), (0xA0, 0x180), (0x300, 0x370), (0x370, 0x530), (0x530, 0x700), (0x900, 0xE00),
    (0xE00, 0x1200), (0x2000, 0x2BFF), (0x3040, 0x3130), (0x4E00, 0x9FFF), (0xAC00, 0xD7A0),
    (0xFB00, 0xFE00), (0xFF00, 0xFFF0), (0x1F300, 0x1FA00), (0x20000, 0x20200),
)  # fmt: skip


@cache
def sections() -> dict[str, str]:
    """The texts by name: languages, code, data, symbols."""
    text = Path(__file__).with_name("probe.txt").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in ("\n" + text).split("\n== ")[1:])
    return {name: body for name, _, body in parts}


@cache
def probe() -> tuple[str, ...]:
    """About 300 texts, 50 kB: the sections and their lines, runs of white space, characters at random."""
    texts = list(sections().values())
    for body in sections().values():
        texts.extend(line for line in body.split("\n") if line)
    texts.extend(space * count for space in " \t\n\r" for count in (1, 2, 3, 7, 16, 33))
    texts.extend(("a  b\n\n\nc \n d\t\te\r\n\r\nf", "  x", "\n x", " \n", "x \u3000y\u00a0z", "1 22  333   4444 55555"))
    texts.extend(("'s 'S I'll I'LL we've", "a" * 99, "=" * 99, "7" * 99, "\u200d\u200da\u200d1\u200d", "\x00\x01\x1f"))
    texts.extend(_random(seed, 60) for seed in range(60))
    return tuple(texts)


def _random(seed: int, length: int) -> str:
    """Characters from one to three ranges, the same at every run."""
    state, out = seed * 2654435761 + 1, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        low, high = _RANGES[(seed + (state >> 60) % 3) % len(_RANGES)]
        out.append(chr(low + (state >> 33) % (high - low)) if state >> 40 & 7 else " ")
    return "".join(out)
