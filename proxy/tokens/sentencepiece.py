"""SentencePiece BPE on tiktoken's engine.

SentencePiece merges characters, tiktoken bytes. Artificial tokens before all others put the bytes of each known
character together, so that from there on the merges are the same; a character that is not known stays bytes,
as SentencePiece's byte fallback has it, save for artificial beginnings of characters, which are counted as the
bytes they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from proxy.counting.chunks import chunks
from proxy.tokens.vocabulary import clean, encoder

SPACE = "\u2581"
_WORDS = r" *[^ ]+| +"
_LINES = r" *[^ \n\t]+| +|\n+|\t+"
_TAGS = r"{tags}| *(?:[^ \n\t<]|<(?!{rest}))+| +|\n+|\t+"
_TAG = re.compile(r"</?[a-z][a-z0-9]*>")


class SentencePieceVocabulary:
    """Counts tokens of a SentencePiece BPE vocabulary with byte fallback.

    Args:
        name: under which counts are cached.
        pieces: all ordinary pieces in merge order, spaces as U+2581 or plain; after them those that are found
            in the text before anything is merged, such as Gemma's runs of newlines and HTML tags.
        prefix: whether a space is put before a text (llama 2, mistral; not gemma).
    """

    def __init__(self, name: str, pieces: Iterable[str], *, prefix: bool) -> None:
        self.id = name
        self._prefix = " " if prefix else ""
        tokens = [piece.replace(SPACE, " ") for piece in pieces]
        ranks, self._extra = _ranks(tokens)
        pattern = _pattern(ranks, {token for token in tokens if _TAG.fullmatch(token)})
        self._encode = encoder(name, pattern, ranks)

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        if not text:
            return 0
        text = self._prefix + text.replace(SPACE, " ")
        return sum(map(self._count, chunks(text)))

    def _count(self, chunk: str) -> int:
        ids = self._encode(chunk)
        if chunk.isascii():
            return len(ids)
        extra = self._extra
        return len(ids) + sum(extra[i] for i in ids if i in extra)


def is_apart(token: str) -> bool:
    """Whether an added token is a run of one kind of white space or a tag, which text has, and no marker."""
    if len(token) > 1 and token[0] in f"\n\t{SPACE}" and not token.strip(token[0]):
        return True
    return _TAG.fullmatch(token) is not None


def _pattern(ranks: dict[bytes, int], tags: set[str]) -> str:
    if b"\n\n" not in ranks:
        return _WORDS
    if not tags:
        return _LINES
    rest = "|".join(sorted(tag[1:] for tag in tags))
    return _TAGS.format(tags=f"<(?:{rest})", rest=rest)


def _ranks(tokens: list[str]) -> tuple[dict[bytes, int], dict[int, int]]:
    """Ranks, and how many tokens more than one each artificial token stands for."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    extra: dict[int, int] = {}
    characters = [clean(token).encode() for token in tokens if len(token) == 1]
    for size in (2, 3, 4):
        for character in characters:
            if len(character) >= size and character[:size] not in ranks:
                rank = ranks[character[:size]] = len(ranks)
                if len(character) > size:
                    extra[rank] = size - 1
    for token in tokens:
        ranks.setdefault(clean(token).encode(), len(ranks))
    return ranks, extra
