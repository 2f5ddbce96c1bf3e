"""Reading shipped vocabularies."""

from __future__ import annotations

from functools import cache
from importlib import resources

from proxy.tokens.lean import unpack
from proxy.tokens.vocabulary import BpeVocabulary


@cache
def packed(name: str, pattern: str) -> BpeVocabulary:
    """Build the vocabulary whose ranks are in the data file `name`, once in a process.

    Raises:
        OSError: the file is missing.
        ValueError: it is damaged.
    """
    data = resources.files("proxy.tokens.data").joinpath(f"{name}.spv").read_bytes()
    return BpeVocabulary(name, pattern, unpack(data))
