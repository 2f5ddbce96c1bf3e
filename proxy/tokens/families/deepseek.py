"""DeepSeek V3, V3.1, R1; not its distilled models, which keep the vocabulary they came from."""

from __future__ import annotations

import re

from proxy.tokens.families.family import Family
from proxy.tokens.families.packed import packed
from proxy.tokens.patterns import DEEPSEEK3
from proxy.tokens.vocabulary import Vocabulary


def load() -> Vocabulary:
    """Build the vocabulary."""
    return packed("deepseek", DEEPSEEK3)


FAMILY = Family(
    id="deepseek",
    hints=re.compile(r"deepseek[_-]?(v3|v3\.1|v32|3|r1)|deepseek"),
    names=re.compile(r"deepseek-?(v3|r1(?!.*distill)(?!:(1\.5|7|8|14|32|70)b)|chat|reasoner)"),
    load=load,
)
