"""cl100k: GPT-4, GPT-3.5; also Phi-4."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family
from proxy.tokens.families.packed import packed
from proxy.tokens.patterns import CL100K
from proxy.tokens.vocabulary import Vocabulary


def load() -> Vocabulary:
    """Build the vocabulary."""
    return packed("cl100k", CL100K)


FAMILY = Family(
    id="cl100k",
    hints=re.compile(r"cl100k(_base)?|phi-?4"),
    names=re.compile(r"gpt-4(?![\do.])|gpt-3\.5|phi-?4"),
    load=load,
)
