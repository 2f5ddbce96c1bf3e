"""Tekken: Mistral Nemo, Small 3, Ministral, Pixtral 12B, Devstral, Magistral."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family
from proxy.tokens.families.packed import packed
from proxy.tokens.patterns import TEKKEN
from proxy.tokens.vocabulary import Vocabulary


def load() -> Vocabulary:
    """Build the vocabulary."""
    return packed("tekken", TEKKEN)


FAMILY = Family(
    id="tekken",
    hints=re.compile(r"tekken|mistral3|ministral3?"),
    names=re.compile(
        r"nemo(?!tron)|mistral-?small|mistral-?medium|ministral|pixtral-?12b|devstral|magistral|voxtral"
    ),
    load=load,
)
