"""What a vocabulary that is only near to a model's own misses, made up for by signs of the language that a text is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from proxy.tokens.vocabulary import Vocabulary

Signs: TypeAlias = tuple[tuple[str | tuple[str, ...], float], ...]
"""Letters or words of a language, and the tokens that a text has more for each that is found in it."""


class SignedVocabulary:
    """Counts as another vocabulary does, and adds what the signs tell."""

    def __init__(self, name: str, counted: Vocabulary, signs: Signs) -> None:
        self.id = name
        self._counted = counted
        self._all = tuple(signs)
        self._plain = tuple((found, more) for found, more in signs if all(map(str.isascii, found)))

    def count(self, text: str) -> int:
        """Tokens of `text`, about; at least half of what the other counts, so that no text is free."""
        tokens = self._counted.count(text)
        more = _more(self._plain if text.isascii() else self._all, text)
        return round(max(tokens + more, tokens / 2, bool(text))) if more else tokens


def _more(signs: Iterable[tuple[Iterable[str], float]], text: str) -> float:
    return sum(more * sum(map(text.count, found)) for found, more in signs)
