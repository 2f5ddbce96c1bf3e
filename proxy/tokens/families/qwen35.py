"""Qwen 3.5 and later: a larger vocabulary that is not at hand; what is known is one token per digit."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="qwen35",
    hints=re.compile(r"qwen3\.?[5-9](moe|vl|_)*"),
    names=re.compile(r"qwen-?3\.[5-9]"),
    prior=(1.0, 0.6, *([0.0] * 15)),
)
