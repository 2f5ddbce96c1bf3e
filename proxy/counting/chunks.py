"""Cut long text where no token is likely to cross, so that no single call runs long."""

from __future__ import annotations

import re
from collections.abc import Iterator

CHUNK = 64 * 1024
"""Characters after which to look for a place to cut."""
REACH = 4 * 1024
"""Characters within which a good place is looked for."""
_PLACE = re.compile(r"(?<=\n)(?=[^\W\d_])|(?<=[^\W\d_])(?= [^\W\d_])")


def chunks(text: str, size: int = CHUNK, reach: int = REACH) -> Iterator[str]:
    """Split `text` into pieces of about `size` characters; joined they are `text` again.

    Cuts come before a word, where byte-level and SentencePiece vocabularies begin a new token in any case;
    in text without words they come anywhere and cost a few tokens each.
    """
    start = 0
    while len(text) - start > size + reach:
        at = start + size
        place = _PLACE.search(text, at, at + reach)
        end = place.start() if place else at
        yield text[start:end]
        start = end
    yield text[start:] if start else text
