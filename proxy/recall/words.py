"""Terms of a text: stems of words, pairs of characters where words are not spaced, identifiers unsplit.

Stems are Snowball's (the package snowballstemmer); the language is the one whose function words a text has most of.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

from proxy.recall.function_words import ALL_FUNCTION_WORDS, FUNCTION_WORDS

# Every repetition is bounded, so that no text takes longer than a constant for each of its characters.
_TOKEN = re.compile(r"[^\W_]{1,64}(?:[_./:@\\#+'\u2019-]{1,3}[^\W_]{1,64}){0,12}")
_PART = re.compile(r"[^\W_]+")
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese characters, as a range for a pattern."""
UNSPACED = f"\u3040-\u30ff{HAN}\uac00-\ud7a3\u0e00-\u0e7f"
"""The same for all that is written without spaces: kana, Chinese characters, Thai; and Korean syllables, whose endings change."""
_RUN = re.compile(f"[{UNSPACED}]+|[^{UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{UNSPACED}]")
_APOSTROPHE = re.compile("['\u2019]")
_DEFAULT = "english"
_LEAST_VOTES = 2


def terms(text: str) -> list[str]:
    """The terms of a text, in order and as often as they occur; function words are none."""
    tokens = _TOKEN.findall(folded(text))
    language = language_of(tokens)
    found: list[str] = []
    for token in tokens:
        found += _terms_of(token, language)
    return found


def folded(text: str) -> str:
    """A text in small letters, without accents, in the usual width."""
    if text.isascii():
        return text.lower()
    # Twice, because a mathematical letter becomes a capital, which can then be folded, only by the first normalization.
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if unicodedata.category(c) != "Mn"))


def language_of(tokens: list[str]) -> str:
    """The language of folded words, English if they do not tell."""
    words = set(tokens) & ALL_FUNCTION_WORDS
    votes = {language: len(words & common) for language, common in FUNCTION_WORDS.items()}
    best = max(votes, key=lambda language: votes[language])
    return best if votes[best] >= _LEAST_VOTES and votes[best] > votes[_DEFAULT] else _DEFAULT


@lru_cache(maxsize=65536)
def _terms_of(token: str, language: str) -> tuple[str, ...]:
    parts = _PART.findall(_APOSTROPHE.sub(" ", token))
    compound = (token,) if len(parts) > 1 and not _APOSTROPHE.search(token) else ()
    return (*compound, *(term for part in parts for term in _of_part(part, language)))


@cache
def _stemmer() -> Callable[[str], Any]:
    """Return the factory of stemmers, by language."""
    from snowballstemmer import stemmer  # noqa: PLC0415 - thirty languages, 3 MB, when the first words are looked for

    factory: Callable[[str], Any] = stemmer
    return factory


def is_loaded() -> bool:
    """Return whether the stemmers are imported: the first `terms` of a process takes 0.1 s longer, and belongs in a thread."""
    return _stemmer.cache_info().currsize > 0


def _of_part(part: str, language: str) -> Iterator[str]:
    if not _IS_UNSPACED.search(part):
        if part not in FUNCTION_WORDS[language]:
            # One that is used by two threads at a time mixes up their words; a new one costs half a microsecond.
            yield _stemmer()(language).stemWord(part)
        return
    for run in _RUN.findall(part):
        if not _IS_UNSPACED.match(run) or len(run) == 1:
            yield run
        else:
            yield from (run[at : at + 2] for at in range(len(run) - 1))
