"""GLM: said to be cl100k with Chinese merges; no vocabulary at hand, so a prior corrects the general one."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family

FAMILY = Family(
    id="glm",
    hints=re.compile(r"(chat)?glm(-?4)?(moe)?(-bpe)?"),
    names=re.compile(r"(^|[/:-])(chat)?glm"),
    prior=(
        *(1.016, -0.004, 0.010, -0.010, -0.036, -0.059, 1.075, 0.209, 0.494, 0.808, 0.039, 0.260, 0.312),
        *(0.531, -0.054, 0.967, 0.012),
    ),
)
