"""Sentences of a text, in any script, and the paths, URLs, numbers and names in it."""

import re
from collections.abc import Iterable, Iterator

# Every repetition is bounded, so that no text takes longer than a constant for each of its characters.
_END = re.compile(
    r"(?:[.!?…]{1,4}[\"'»”’)\]*_]{0,3}(?=\s|$))|[。！？｡]{1,4}[」』”’）]{0,2}|\n"  # noqa: RUF001 - ends of sentences in Chinese and Japanese
)
_CLAUSE = re.compile(r"[;:,—–](?=\s)|[，；：、]|\s")  # noqa: RUF001 - the same of clauses
# "Dr. Okafor" was cut in two. Abbreviations with a vowel ("Prof.", "No.") cannot be told from words, and still end a
# sentence.
_NUMBERED = re.compile(
    r"(?:(?:^|\n)\s{0,4}(?:[^\W\d]{1,8}\s)?\(?\d{1,3}|\b(?:am|im|vom|zum|bis|de[rmns]|die|das)\s\d{1,3}|(?:^|\s)\(?(?:[A-Za-z]\.\s?)?[A-Za-z]"
    r"|(?-i:\b[B-DF-HJ-NP-TV-XZ][b-df-hj-np-tv-xz]{1,3}))$",
    re.IGNORECASE,
)
"""Text before a dot that does not end a sentence: an item's or step's number, a German ordinal, an initial, 'e.g', a title
or name cut to consonants ('Dr', 'Mrs', 'St').
"""
_COUNTED = re.compile(r"\s\(?\d{1,3}$")
"""Any other number before a dot; it ends a sentence unless a small letter follows."""
_BEFORE = 12
# The alternatives are tried in order at each place, so that a path is found before its file name could be. Every
# repetition is bounded, so that no text takes longer than a constant for each of its characters.
_IDENTIFIER = re.compile(
    r"https?://[^\s<>\"'`)\]}]{4,200}"
    r"|(?<![\w/])(?:~|\.{1,2})?(?:/[\w.@+-]{1,80}){2,12}"
    r"|(?<![\w./-])[\w-]{1,60}(?:/[\w.-]{1,60}){1,12}\.\w{1,8}\b"
    r"|(?<![\w-])[\w-]{1,60}\.(?:py|js|ts|tsx|go|rs|java|c|h|cpp|md|toml|yaml|yml|json|sql|sh|txt|csv)\b"
    r"|(?<![\w-])(?=[A-Za-z_-]{0,40}\d)(?=[\d_-]{0,40}[A-Za-z])[A-Za-z\d][\w-]{4,60}\b"
    r"|\b\d[\d.,:]{3,20}\d\b"
)
_LONGEST_TEXT = 200_000


def sentences(text: str, *, longest: int) -> Iterator[str]:
    """Yield the sentences of a text, stripped of white space; one of more than `longest` characters is cut at clauses."""
    start = 0
    for end in _ends(text):
        sentence = text[start:end].strip()
        start = end
        while len(sentence) > longest:
            cut = max((found.end() for found in _CLAUSE.finditer(sentence, longest // 2, longest)), default=longest)
            yield sentence[:cut].strip()
            sentence = sentence[cut:].strip()
        if sentence:
            yield sentence


def last_end(text: str) -> int:
    """Find the end of the last complete sentence, or 0. A line's end completes a sentence, the end of the text does not."""
    last = 0
    for end in _ends(text):
        if end < len(text) or not text[-1:].isalnum():
            last = end if text[:end].rstrip()[-1:] not in {",", ":", ";", "，", "；", "："} else last  # noqa: RUF001 - the same
    return last


def _ends(text: str) -> Iterator[int]:
    for found in _END.finditer(text):
        at = found.start()
        if text[at] == ".":
            place = max(0, at - _BEFORE), at
            small = text[at + 2 : at + 3].islower()
            if _NUMBERED.search(text, *place) or (small and _COUNTED.search(text, *place)):
                continue
        yield found.end()
    if text and not _END.fullmatch(text[-1]):
        yield len(text)


def identifiers(texts: Iterable[str], *, limit: int) -> list[str]:
    """Return the newest distinct identifiers in order of their last appearance, at most `limit` characters in total."""
    found: dict[str, None] = {}
    for text in texts:
        for name in found_in(text):
            found.pop(name, None)
            found[name] = None
    return newest_within(found, limit=limit)


def found_in(text: str) -> Iterator[str]:
    """Find the identifiers of a text, in order, with repetitions."""
    return (match.group().rstrip(".,:;") for match in _IDENTIFIER.finditer(text[:_LONGEST_TEXT]))


def newest_within(found: Iterable[str], *, limit: int) -> list[str]:
    """Return the newest texts that fit into `limit` characters, in their order; each counts two more for a separator.

    One that is too long for the room left is skipped, and an older, shorter one may still be taken.
    """
    chosen: list[str] = []
    room = limit
    for name in reversed(list(found)):
        if len(name) + 2 <= room:
            room -= len(name) + 2
            chosen.append(name)
    return chosen[::-1]
