"""Llama 2 and Phi-3, which took its vocabulary over: licence forbids shipping it, so a prior corrects the general one."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="llama2",
    hints=re.compile(r"llama-?2|llama-spm"),
    names=re.compile(r"llama-?2|codellama|vicuna|tinyllama|phi-?3"),
    prior=(
        *(0.975, 0.514, 0.027, 0.020, 0.686, 0.108, 1.797, 0.176, 0.845, 0.926, 0.543, 0.547, 0.747),
        *(1.459, 0.0, 2.210, 0.159),
    ),
)
