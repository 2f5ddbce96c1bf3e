"""SentencePiece of Mistral 7B and Mixtral; v1, v2, v3 and v7 of it count the same."""

from __future__ import annotations

import re
from importlib import resources

from proxy.tokens.families.family import Family
from proxy.tokens.lean import unpack
from proxy.tokens.sentencepiece import SentencePieceVocabulary
from proxy.tokens.vocabulary import Vocabulary


def load() -> Vocabulary:
    """Build the vocabulary."""
    data = resources.files("proxy.tokens.data").joinpath("mistral.spv").read_bytes()
    pieces = sorted((rank, token) for token, rank in unpack(data).items())
    return SentencePieceVocabulary("mistral", [token.decode() for _, token in pieces], prefix=True)


FAMILY = Family(
    id="mistral",
    hints=re.compile(r"mistral-spm|mixtral"),
    names=re.compile(
        r"mistral-?7b|mixtral|mistral:(?!small|nemo|large)|^mistral$|mathstral|codestral-?22b|zephyr-7b"
    ),
    load=load,
)
