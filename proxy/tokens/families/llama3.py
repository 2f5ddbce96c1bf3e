"""Llama 3, 3.1, 3.2, 3.3: licence forbids shipping the vocabulary, so a prior corrects the general one."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="llama3",
    hints=re.compile(r"llama-?3|llama-bpe|llama-v3"),
    names=re.compile(r"llama-?3|hermes-3|dolphin.*llama|deepseek-r1:70b|distill-llama"),
    prior=(
        *(1.004, 0.006, 0.013, -0.009, -0.030, -0.055, 1.010, 0.049, 0.091, 0.251, -0.026, -0.086, 0.029),
        *(0.028, -0.011, 0.925, 0.015),
    ),
)
