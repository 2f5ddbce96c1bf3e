"""Facts of a text that can be looked for in another: names, numbers, dates, paths and rare words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from proxy.core.history.sentences import found_in
from proxy.recall.words import ALL_FUNCTION_WORDS, HAN, UNSPACED, folded

_COUNTED = "年月日号歳岁個个人元円分時时点년월일살명개원시"
# One after the other at each place of a text. Every repetition is bounded.
_TOKEN = re.compile(
    rf"(?P<number>(?<![^\W{UNSPACED}])[vV$€£¥₹]?\d{{1,20}}(?:[.,:/-]\d{{1,12}}){{0,6}}(?:\s?[%€£¥°]|[a-zA-Z]{{1,3}}\b|[{_COUNTED}])?)"
    r"|(?P<katakana>[\u30a1-\u30fa\u30fc・]{2,20})"
    r"|(?P<quoted>[《「『“„«][^《》「」『』“”„«»\n]{1,40}[》」』”“»])"
    rf"|(?P<han>[{HAN}]{{2,40}})"
    r"|(?P<hangul>[\uac00-\ud7a3]{2,20})"
    rf"|(?P<word>[^\W\d_{UNSPACED}][^\W_{UNSPACED}]{{0,60}}(?:['’-][^\W_{UNSPACED}]{{1,30}}){{0,4}})"
)
_WORD = re.compile(rf"[\W_]*(?:[^\W\d_]+[\W_]*){{1,4}}|.*[{UNSPACED}].*")

IDENTIFIER, NUMBER, NAME = 3.0, 2.5, 3.0
_DIGIT, _QUOTED, _KATAKANA = 0.6, 2.0, 2.0
_FIRST, _NOUN = 0.8, 0.7
"""A capital at the beginning of a sentence says little, and on a noun where all have one."""
_BEFORE_NOUN = re.compile(r"(?:e|en|er|es|em|das|ein|mein|dein|sein|ihr|kein|im|am|zum|vom|beim)$")
"""How words end that stand before nouns in German: articles, adjectives."""
_RARE, _LONG, _PAIR = 0.5, 0.7, 0.2
HARD = 1.5


@dataclass(frozen=True, slots=True)
class TextFact:
    """Something that a text tells: as it is written, folded to be compared, and how much it matters."""

    text: str
    key: str
    weight: float

    @property
    def hard(self) -> bool:
        """Return whether it can be told on its own: a name, a number, a path."""
        return self.weight >= HARD


def facts_in(sentence: str) -> Iterator[TextFact]:
    """The facts of a sentence, in order, with repetitions."""
    rest, names = sentence, list(found_in(sentence))
    for name in names:
        yield TextFact(name, folded(name), IDENTIFIER)
        rest = rest.replace(name, " ", 1)
    tokens = list(_TOKEN.finditer(rest))
    words = [token["word"] for token in tokens if token["word"]]
    titled = _titled(words)
    before = ""
    for token in tokens:
        kind, text = token.lastgroup, token.group()
        if kind == "word":
            noun = titled and _BEFORE_NOUN.search(before) is not None
            yield from _of_word(text, capital=(_NOUN if noun else NAME) if before else _FIRST)
        elif kind == "number":
            text = text.strip()
            yield TextFact(
                text, folded(text), NUMBER if sum(map(str.isdigit, text)) > 1 or not text.isdecimal() else _DIGIT
            )
        elif kind == "han":
            yield from (TextFact(text[at : at + 2], text[at : at + 2], _PAIR) for at in range(len(text) - 1))
        elif kind == "hangul":
            # Endings change, stems do not.
            yield TextFact(text, text[:2], _RARE)
        else:
            bare = text if kind == "katakana" else text[1:-1].strip()
            yield TextFact(bare, folded(bare), _KATAKANA if kind == "katakana" else _QUOTED)
        before = text


def is_mentioned(key: str, text: str, words: Collection[str]) -> bool:
    """Return whether a fact is in a folded text, whose words are `words`; a number or a word only as a whole."""
    return key in words or (not (key.isalnum() and key.isascii()) and key in text)


def words_of(text: str) -> frozenset[str]:
    """The words and numbers of a folded text."""
    found = {token.group() for token in _TOKEN.finditer(text)}
    parts = {part for token in found if not token.isalnum() for part in re.findall(r"\w+", token)}
    return frozenset(found | parts | set(re.findall(r"[^\W_]+", text)))


def is_prose(sentence: str) -> bool:
    """Return whether most of its words are words, as in what a person says; data has digits and signs in most of them."""
    words = sentence.split()
    return 2 * sum(_WORD.fullmatch(word) is not None for word in words) >= len(words)


def _of_word(text: str, *, capital: float) -> Iterator[TextFact]:
    key = folded(text)
    if key in ALL_FUNCTION_WORDS or re.split("['’]", key)[0] in ALL_FUNCTION_WORDS:
        return
    if any(map(str.isdigit, text)):
        yield TextFact(text, key, NUMBER)
    elif text[0].isupper() and len(text) > 1:
        yield TextFact(text, key, capital)
    elif len(text) >= 5:
        yield TextFact(text, key, _LONG if len(text) >= 9 else _RARE)


def _titled(words: list[str]) -> bool:
    """Return whether a sentence has capitals all over: a title, something shouted, or German, whose nouns have them."""
    content = [word for word in words if folded(word) not in ALL_FUNCTION_WORDS]
    capitals = sum(word[0].isupper() for word in content)
    return len(content) >= 4 and capitals > 0.6 * len(content)
