"""Llama 4: licence forbids shipping the vocabulary, so a prior corrects the general one."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="llama4",
    hints=re.compile(r"llama-?4"),
    names=re.compile(r"llama-?4"),
    prior=(
        *(0.973, 0.018, 0.004, 0.005, 0.019, 0.010, -0.004, -0.029, 0.074, 0.030, -0.094, -0.206, -0.116),
        *(-0.082, 0.007, 0.130, 0.001),
    ),
)
