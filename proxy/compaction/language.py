"""Script and language of a text, as far as its letters and function words tell."""

import re
import unicodedata
from collections import Counter
from functools import lru_cache

from proxy.recall.words import FUNCTION_WORDS, folded

_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,200}`|https?://\S{1,300}", re.DOTALL)
_LATIN, _CYRILLIC = "latin", "cyrillic"
_LETTERS = re.compile(r"[^\W\d_]{2,64}")
_WIDE = {"hiragana": "japanese", "katakana": "japanese", "cjk": "chinese", "hangul": "korean"}
"""Languages by the scripts, as Unicode names them, that only they have; of Japanese a part."""
_LEAST_LETTERS, _OF_WIDE, _MAIN = 48, 2.5, 0.6
"""Letters that a text needs for its script to tell, how many of them one of those counts as, and the share of its own script."""
_LEAST_KNOWN, _KNOWN_SHARE, _LEAD = 6, 0.15, 1.4
"""Function words that a language must have: how many, as a share of all words, and how many times those of any other."""
_LONGEST = 20_000
"""Characters of a text that are looked at."""


def script_and_language(text: str) -> tuple[str, str]:
    """Script and language of a text, small letters; an empty string for what does not show."""
    text = _CODE.sub(" ", text[:_LONGEST])
    letters = Counter(filter(None, map(_script_of, text)))
    if letters["japanese"] * 4 > letters["chinese"]:
        letters["japanese"] += letters.pop("chinese", 0)
    sizes = {script: count * (_OF_WIDE if script in _WIDE.values() else 1.0) for script, count in letters.items()}
    script = max(sizes, key=lambda name: sizes[name], default="")
    if sizes.get(script, 0.0) < max(_LEAST_LETTERS, _MAIN * sum(sizes.values())):
        return "", ""
    if script in (_LATIN, _CYRILLIC):
        return script, _by_function_words(folded(text))
    return script, script if script in _WIDE.values() else ""


@lru_cache(maxsize=4096)
def _script_of(letter: str) -> str:
    """The script of a letter, or its language if that has it alone; empty for any other character."""
    name = unicodedata.name(letter, "").split(" ")[0].lower() if letter.isalpha() else ""
    return _WIDE.get(name, name)


def differ(expected: tuple[str, str], found: tuple[str, str]) -> bool:
    """Return whether two texts are surely not in the same language."""
    return any(one and other and one != other for one, other in zip(expected, found, strict=True))


def _by_function_words(text: str) -> str:
    words = _LETTERS.findall(text)
    votes = {language: sum(w in known for w in words) for language, known in FUNCTION_WORDS.items()}
    best, second = sorted(votes, key=lambda language: votes[language], reverse=True)[:2]
    sure = votes[best] >= max(_LEAST_KNOWN, _KNOWN_SHARE * len(words)) and votes[best] >= _LEAD * votes[second]
    return best if sure else ""
