"""What there is to know of a family of models that share a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from proxy.tokens.vocabulary import Vocabulary

_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models with the same tokenizer.

    `hints` matches the names by which backends call the architecture or tokenizer (lower case, whole);
    `names` finds models by their id, which is a guess. `load` builds the vocabulary from shipped data (slow:
    call it in a thread); None where the data may not be shipped, then `prior` corrects the general one.
    """

    id: str
    hints: re.Pattern[str] = _NEVER
    names: re.Pattern[str] = _NEVER
    load: Callable[[], Vocabulary] | None = None
    prior: tuple[float, ...] = ()
