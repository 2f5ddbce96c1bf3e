"""Qwen 1 to 3, and models distilled into them: one vocabulary, one token per digit."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family
from proxy.tokens.families.packed import packed
from proxy.tokens.patterns import QWEN2
from proxy.tokens.vocabulary import Vocabulary


def load() -> Vocabulary:
    """Build the vocabulary."""
    return packed("qwen", QWEN2)


FAMILY = Family(
    id="qwen",
    hints=re.compile(
        r"(qwen([23]|2[._]?5)?[_-]?(vl|moe|next|omni|audio|_)*|deepseek-r1-qwen)(tokenizer(fast)?)?"
    ),
    names=re.compile(r"qwen-?(?!-?3\.[5-9])|qwq|qvq|deepseek-r1:(1\.5|7|8|14|32)b"),
    load=load,
)
