"""Which language a text is in, told by its script and its function words; where they do not tell, there is no guess."""

from __future__ import annotations

import re

from proxy.recall.function_words import FUNCTION_WORDS
from proxy.recall.words import folded

_LONGEST = 20_000
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,200}`|https?://\S{1,300}", re.DOTALL)
_LATIN, _CYRILLIC = "latin", "cyrillic"
_SCRIPTS = {
    _LATIN: re.compile(r"[A-Za-z\u00c0-\u024f]{2,}"),
    _CYRILLIC: re.compile(r"[\u0400-\u04ff]{2,}"),
    "greek": re.compile(r"[\u0370-\u03ff]{2,}"),
    "hebrew": re.compile(r"[\u0590-\u05ff]{2,}"),
    "arabic": re.compile(r"[\u0600-\u06ff]{2,}"),
    "devanagari": re.compile(r"[\u0900-\u097f]{2,}"),
    "thai": re.compile(r"[\u0e00-\u0e7f]{4}"),
    "korean": re.compile(r"[\uac00-\ud7a3]{2}"),
    "japanese": re.compile(r"[\u3040-\u30ff]{2}"),
    "chinese": re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]{2}"),
}
"""Something like a word in each. Japanese and Korean texts have Chinese characters among their own."""
_LEAST_WORDS = 12
_MAIN = 0.6
"""Share of its words that a text's script must have."""
_LEAST_KNOWN, _KNOWN_SHARE, _LEAD = 6, 0.15, 1.4
"""Function words that a language must have: how many, as a share of all words, and how many times those of any other."""


def script_and_language(text: str) -> tuple[str, str]:
    """Script and language of a text, small letters; an empty string for what does not show."""
    text = _CODE.sub(" ", text[:_LONGEST])
    words = {script: len(pattern.findall(text)) for script, pattern in _SCRIPTS.items()}
    if words["japanese"] * 4 > words["chinese"]:
        words["japanese"] += words.pop("chinese")
    script = max(words, key=lambda name: words[name])
    if words[script] < max(_LEAST_WORDS, _MAIN * sum(words.values())):
        return "", ""
    if script not in (_LATIN, _CYRILLIC):
        return script, script if script in ("korean", "japanese", "chinese") else ""
    return script, _by_function_words(folded(text), _SCRIPTS[script])


def differ(expected: tuple[str, str], found: tuple[str, str]) -> bool:
    """Whether two texts are surely not in the same language."""
    return any(one and other and one != other for one, other in zip(expected, found, strict=True))


def _by_function_words(text: str, word: re.Pattern[str]) -> str:
    words = word.findall(text)
    votes = {language: sum(w in known for w in words) for language, known in FUNCTION_WORDS.items()}
    best, second = sorted(votes, key=lambda language: votes[language], reverse=True)[:2]
    sure = (
        votes[best] >= max(_LEAST_KNOWN, _KNOWN_SHARE * len(words)) and votes[best] >= _LEAD * votes[second]
    )
    return best if sure else ""
