"""Terms of a text: stems of words, pairs of characters in scripts without spaces, and whole identifiers.

Stems are Snowball's (package snowballstemmer); the language is the one with the most function words in the text.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import regex

# Every repetition is bounded, so that the time per character is bounded for any text. `regex`, unlike `re`, counts vowel signs,
# as in Hindi, as parts of words.
_TOKEN = regex.compile(r"[^\W_]{1,64}(?:[_./:@\\#+'\u2019-]{1,3}[^\W_]{1,64}){0,12}")
_PART = regex.compile(r"[^\W_]+")
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese characters, as a range for a pattern."""
UNSPACED = f"\u3040-\u30ff{HAN}\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""All scripts written without spaces, as a range for a pattern: kana, Chinese characters, Thai, Lao, Burmese, Khmer; and Korean
syllables, because endings of Korean words change.
"""
_RUN = re.compile(f"[{UNSPACED}]+|[^{UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{UNSPACED}]")
_APOSTROPHE = re.compile("['\u2019]")
_ID = re.compile(r"\d[^\W\d]{1,64}\d|\d\Z")
"""Tokens that are not stemmed: with digits on both sides of letters (a hash, an id, base64), or at the end, since stemmers only cut
endings made of letters.
"""
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,200}`|https?://\S{1,300}", re.DOTALL)
_LATIN, _CYRILLIC = "latin", "cyrillic"
_LETTERS = re.compile(r"[^\W\d_]{2,64}")
_WIDE = {"hiragana": "japanese", "katakana": "japanese", "cjk": "chinese", "hangul": "korean"}
"""Languages by scripts, as Unicode names them, that only they use; Japanese is also written with Chinese characters."""
_LEAST_LETTERS, _OF_WIDE, _MAIN = 48, 2.5, 0.6
"""Fewest letters that reveal a text's script, letters that one of these languages' characters counts as, and the main script's least
share of all letters.
"""
_LEAST_KNOWN, _KNOWN_SHARE, _LEAD = 6, 0.15, 1.4
"""Function words needed to recognise a language: fewest, least share of all words, and least multiple of any other language's."""
_LOOKED_AT = 20_000
"""Characters at the start of a text from which its language is recognised."""
_DEFAULT = "english"
_LEAST_VOTES = 2
"""Fewest function words that decide the language of a sentence; with fewer it is taken for English."""
# Paths are long tokens made of few words: 400 kB of them took 3.5 s to stem as whole tokens, and 0.13 to 0.5 s with the
# stems of their parts cached.
_SHORT = 32
"""Most characters of a token whose terms are cached, and of a part of a token that is stemmed as a word."""
_SCRIPTS = {"DEVANAGARI": "hindi", "ARABIC": "arabic", "TAMIL": "tamil", "GREEK": "greek", "ARMENIAN": "armenian"}
"""Languages with a stemmer by their scripts, as Unicode names them."""
_PERSIAN = re.compile("[\u067e\u0686\u0698\u06a9\u06af\u06cc]")
"""Letters that Arabic does not have."""

# Words that do not show what a text is about, folded, by the stemmers' names of languages.
_FUNCTION_WORDS = {
    "english": """a about all also am an and any are as at be been being both but by can could did do does each for from
        had has have having he her here him his how i if in is it its just ll many me might mine more most much must my
        no not of on only or other our own re s same shall she should so some such t than that the their them then
        there these they this those to too us ve very was we were what when where which who whom whose why will
        with would yes you your""",
    "german": """aber als am an auch auf aus bei bin bist da das dass dem den denn der des dich die dir doch du ein eine
        einem einen einer er es fur hab habe haben hat hatte ich ihm ihn ihr im in ist ja kann man mein mich mir
        mit nach nein nicht noch nur ob oder sein sich sie sind so uber um und uns von vor wann war waren was wenn
        wer wie wir wird wo zu zum zur""",
    "french": """a ai as au aux avec avez c ce ces cette ce comment d dans de des du elle en est et etait ete etre eu il
        ils j je l la le les leur lui m ma mais me mes moi mon n ne non nous on ont ou oui par pas pour qu quand que
        quel quelle qui quoi s sa se ses son sont sur t ta te toi ton tu un une vous y""",
    "spanish": """a al como con cual cuando de del donde e el ella en era es esta este esto ha han has hay he la las le les
        lo los me mi mis muy no nos o para pero por porque que quien se ser si sin sobre son su sus te tu tus un
        una y ya yo""",
    "portuguese": """a ao aos as com como da das de do dos e ela ele em era es essa esse esta este eu foi ja lhe mas me meu
        minha muito na nao nas no nos o os ou para pela pelo por porque qual quando que quem se sem ser seu sim sua
        te tem um uma voce""",
    "italian": """a ad al alla anche che chi ci come con cosa da dal dei del della di dove e ed era gli ha hai ho i il in
        io l la le lei li lo lui ma mi mio mia ne nei nel nella non o per perche piu qual quale quando quello
        questa questo se sei si sono su sua suo ti tu un una uno""",
    "russian": """а был была были было быть в во вот все вы где да для до его ее если есть еще же за и из или их к как
        какие какой ко когда кто ли мне мной мой мы на не нет ни но о об он она они от по при с со так такой там то
        тот ты у уже что чтобы это этот я""",
}
FUNCTION_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()
}

ALL_FUNCTION_WORDS = frozenset().union(*FUNCTION_WORDS.values())


def terms(text: str) -> list[str]:
    """List the terms of a text, in order and with repetitions, without function words."""
    return terms_of_folded(folded(text))


def terms_of_folded(text: str) -> list[str]:
    """List the terms of a text that is already folded; the language is determined sentence by sentence."""
    # By sentence, because a Spanish fact in an English message was stemmed as English, and no Spanish question found
    # it.
    found: list[str] = []
    for tokens in map(_TOKEN.findall, re.split(r"[.!?]\s|\n", text)):
        language = language_of(tokens)
        for token in tokens:
            found += (_terms_of if len(token) <= _SHORT else _terms_of.__wrapped__)(token, language)
    return found


def folded(text: str) -> str:
    """Return a text in lower case, without accents, and with full-width and other variants of letters replaced."""
    if text.isascii():
        return text.lower()
    # Twice, because a mathematical letter becomes a capital, which can then be folded, only by the first normalization.
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    letters = (c for c in decomposed if unicodedata.category(c) not in ("Mn", "Me") or "\u0780" <= c < "\u1ab0")
    return unicodedata.normalize(
        "NFC", "".join(letters)
    )  # marks are kept in South Asian scripts, where they are vowels


def language_of(tokens: list[str]) -> str:
    """Return the language of folded words, English if they do not show it."""
    words = set(tokens) & ALL_FUNCTION_WORDS
    votes = {language: len(words & common) for language, common in FUNCTION_WORDS.items()}
    best = max(votes, key=votes.__getitem__)
    return best if votes[best] >= _LEAST_VOTES else _DEFAULT


_shared = lru_cache(maxsize=16384)(str)
"""Returns equal pairs of characters as one object, to save memory: each occurs in many messages."""


@lru_cache(maxsize=16384)
def _terms_of(token: str, language: str) -> tuple[str, ...]:
    parts = _PART.findall(_APOSTROPHE.sub(" ", token))
    found = [token] if len(parts) > 1 and not _APOSTROPHE.search(token) else []
    for part in parts:
        if not part.isascii() and _IS_UNSPACED.search(part):
            for run in _RUN.findall(part):
                spaced = len(run) == 1 or not _IS_UNSPACED.match(run)
                found += [run] if spaced else [_shared(run[at : at + 2]) for at in range(len(run) - 1)]
        elif part not in FUNCTION_WORDS[language]:
            found.append(_stem(part, language) if len(part) <= _SHORT else part)
    return tuple(found)


@lru_cache(maxsize=16384)
def _stem(part: str, language: str) -> str:
    """Return the stem of a word. Cached apart from tokens, because paths and identifiers combine few words in many orders."""
    if _ID.search(part):
        return part
    if not part.isascii():
        script = unicodedata.name(part[0], "").split(" ")[0]
        language = "persian" if _PERSIAN.search(part) else _SCRIPTS.get(script, language)
    # A stemmer used by two threads at a time mixes up their words, and a new one costs only half a microsecond.
    stem: str = _stemmer()(language).stemWord(part)
    return stem


def clear_terms() -> None:
    """Clear the caches of terms, which hold words of users."""
    for each in (_shared, _terms_of, _stem):
        each.cache_clear()


@cache
def _stemmer() -> Callable[[str], Any]:
    """Return the factory that makes a stemmer for a language."""
    from snowballstemmer import stemmer  # noqa: PLC0415 - thirty languages, 3 MB, when the first words are looked for

    factory: Callable[[str], Any] = stemmer
    return factory


# -- the language of a whole text


def script_and_language(text: str) -> tuple[str, str]:
    """Return the names of a text's script and language, in lower case; each is empty if it could not be detected."""
    text = _CODE.sub(" ", text[:_LOOKED_AT])
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
    """Return the script of a letter, or its language if only that language uses it; empty for any other character."""
    name = unicodedata.name(letter, "").split(" ")[0].lower() if letter.isalpha() else ""
    return _WIDE.get(name, name)


def differ(expected: tuple[str, str], found: tuple[str, str]) -> bool:
    """Return whether two texts surely differ in language, by their results of `script_and_language`."""
    return any(one and other and one != other for one, other in zip(expected, found, strict=True))


def _by_function_words(text: str) -> str:
    words = _LETTERS.findall(text)
    votes = {language: sum(w in known for w in words) for language, known in FUNCTION_WORDS.items()}
    best, second = sorted(votes, key=lambda language: votes[language], reverse=True)[:2]
    sure = votes[best] >= max(_LEAST_KNOWN, _KNOWN_SHARE * len(words)) and votes[best] >= _LEAD * votes[second]
    return best if sure else ""
