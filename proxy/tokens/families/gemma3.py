"""Gemma 2, 3 and 4: terms forbid shipping the vocabulary of 2 and 3, so a prior corrects the general one."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="gemma3",
    hints=re.compile(r"gemma[234]?n?|gemini"),
    names=re.compile(r"gemma|gemini"),
    prior=(
        *(0.789, 0.628, 0.026, 0.093, 0.281, 0.248, 0.239, 0.025, 0.084, -0.012, -0.226, -0.145, 0.041),
        *(0.061, 0.113, -0.240, 0.108),
    ),
)
