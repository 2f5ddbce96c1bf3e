"""Passages of a message: all of it if it is short, otherwise pieces.

Also where its terms occur, and the day of writing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from proxy.core.history.marks import is_instruction, is_summary
from proxy.core.history.turns import calls_of
from proxy.core.request import SYSTEM_ROLES, Message, text_of
from proxy.recall.words import folded, terms_of_folded

UNSPLIT = 600
"""Most units of a message that is one passage: about 150 tokens of English."""
PIECE = 420
"""Units of a piece of a longer message."""
_WIDE = 3
"""Units of a non-Latin character, which takes about one token; a Latin one takes a quarter, and counts as 1 unit."""
_LAST_LATIN = "\u024f"
_ENDS = (re.compile(r"\n"), re.compile(r"[.!?](?=\s)|[。！？]"), re.compile(r"\s"))
# A limit of 200,000 cut a book in the middle.
_LONGEST = 1_000_000
"""Most characters of one message that are indexed: a long book. Tool output beyond that can be had by calling the tool again."""
_SENTENCE_ENDS = ".!?\u3002\uff01\uff1f\u061f\n"
_WORDS = r"""who whom whose what when where which why how tell\sme remind\sme show list name give repeat recall say quote state look\sup find
    describe explain (?:do|did|can|could|have)\s(?:i|we|you) (?:hast|kannst|k[oö]nntest|wei(?:ß|ss)t)\sdu \w{2,5}-(?:tu|je|vous|nous) wer wen wem was wann wo woher wohin welche[rsnm]? warum wieso wie wieviel nenn\w* sag zeig\w* erinner\w* qui quoi quand où
    quel\w* pourquoi comment combien dis rappelle redonne donne qui[eé]n\w* qu[eé] cu[aá]ndo d[oó]nde cu[aá]l\w* c[oó]mo cu[aá]nt\w*
    recu[eé]rda\w* dime quem quando onde qual quais quant\w+ lembra\w* diga chi che cosa dove quale perch[eé] ricorda\w* dimmi кто кого что
    когда где куда как\w* почему сколько чей напомни скажи подскажи"""
_ANYWHERE = "什么 什麼 谁 誰 哪 几 幾 多少 怎么 怎麼 为何 吗 嗎 说一下 提醒 何 いつ どこ なぜ どう どの 무엇 뭐 누구 언제 어디 왜 어떻 몇"
_ASKED = re.compile(
    rf"(?<![^{_SENTENCE_ENDS}])(?:[\s\"'\u00bf(-]{{0,4}}(?:{'|'.join(_WORDS.split())})\b[^{_SENTENCE_ENDS}]*[?\uff1f\u061f]?"
    rf"|[^{_SENTENCE_ENDS}]*(?:{'|'.join(_ANYWHERE.split())})[^{_SENTENCE_ENDS}]*[?\uff1f\u061f]?|[^{_SENTENCE_ENDS}]*[?\uff1f\u061f])",
    re.IGNORECASE,
)
"""Sentence that asks: it ends in a question mark (also the Chinese or Arabic one), begins with a word that asks, or has such a word
anywhere in Chinese, Japanese or Korean. Matches start only where a sentence may begin.
"""
# "400 is too little, make it 900" shares no word with the question about the value, so only the old value was recalled:
# in 82 of 100 test cases in three languages, and in none since brief messages have the words of those before them.
_FEW = 8
"""Most terms of a brief message."""
DAY = "day:"
"""Prefix of terms for a day of the year; no word has it."""

# Months in English, German, French, Spanish, Portuguese, Italian and Russian, without accents.
_NAMES = (
    "january januar janvier enero janeiro gennaio января jan",
    "february februar fevrier febrero fevereiro febbraio февраля feb",
    "march marz mars marzo marco марта mar",
    "april avril abril aprile апреля apr",
    "may mai mayo maio maggio мая",
    "june juni juin junio junho giugno июня jun",
    "july juli juillet julio julho luglio июля jul",
    "august aout agosto августа aug",
    "september septembre septiembre setembro settembre сентября sep sept",
    "october oktober octobre octubre outubro ottobre октября oct okt",
    "november novembre noviembre novembro ноября nov",
    "december dezember decembre diciembre dezembro dicembre декабря dec dez",
)
_MONTHS = {name: number for number, names in enumerate(_NAMES, 1) for name in names.split()}
_MONTH = "(?P<{}>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + ")"
_DAY = r"(?P<{}>\d{{1,2}})"
_YEAR = r"(?P<{}>(?:19|20)\d\d)"
_FORMS = (
    rf"(?<![\d.-]){_YEAR.format('y1')}[-/.]{_DAY.format('m1')}[-/.]{_DAY.format('d1')}(?!\d)",
    rf"(?:{_YEAR.format('y2')}\s?[年년]\s?)?(?<!\d){_DAY.format('m2')}\s?[月월]\s?{_DAY.format('d2')}\s?[日号號일]",
    rf"\b{_DAY.format('d3')}(?:st|nd|rd|th|er|\.|º)?\s(?:of\s|de\s)?{_MONTH.format('n3')}\b(?:,?\s(?:de\s)?{_YEAR.format('y3')})?",
    rf"\b{_MONTH.format('n4')}\.?\s(?:the\s)?{_DAY.format('d4')}(?:st|nd|rd|th)?\b(?!:)(?:,?\s{_YEAR.format('y4')})?",
)
_DATE = re.compile("|".join(_FORMS))
_SIGN = re.compile(r"\d")
_OPENING = 64
"""Most characters of a first line in which a date anywhere counts as the day of writing; in a longer line only at its start."""
_BRACKETED = re.compile(r"\s*[\[(<{][^\])>}]{0,80}[\])>}]")
_NO_TIMES = frozenset({"role", "content", "name"})
_EPOCH = range(10**9, 4 * 10**9)
"""Numbers taken for seconds since the epoch: from 2001 on, because no chat with a model is older."""


@dataclass(frozen=True, slots=True)
class MessagePassages:
    """Spans and terms of a message. The text is not stored, because every request has it."""

    spans: tuple[tuple[int, int], ...]
    """Start and end of each passage in the text, in order."""
    lengths: tuple[int, ...]
    """Number of terms in each passage, with repetitions."""
    places: Mapping[str, tuple[tuple[int, int], ...]]
    """For each term, the numbers of the passages that have it, each with how often."""
    day: date | None
    """Day of writing, if the message gives it."""
    brief: bool = False
    """Whether it is a user's message of few words, which may refer to what was said before: "make it 900"."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory that it takes."""
        return 300 + 150 * len(self.spans) + 64 * len(self.places) + 48 * sum(self.lengths)


NO_PASSAGES = MessagePassages((), (), {}, None)


def passages_of(message: Message, *, only: Callable[[str], bool] = bool) -> MessagePassages:
    """Index the passages of a message whose text passes `only`; system messages and Spillway's own have none."""
    hidden = message.get("role") in SYSTEM_ROLES or is_summary(message) or is_instruction(message)
    text, day = "" if hidden else spoken_text(message), written_on(message)
    spans = tuple(span for span in spans_of(text) if only(text[slice(*span)]))
    lengths: list[int] = []
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (start, end) in enumerate(spans):
        found = Counter(terms_and_days(text[start:end]))
        lengths.append(found.total())
        for term, count in found.items():
            places.setdefault(term, []).append((number, count))
    brief = message.get("role") == "user" and len(spans) == 1 and lengths[0] <= _FEW and not asked(text)
    shared = {term: _shared(tuple(where)) for term, where in places.items()}
    return MessagePassages(spans, tuple(lengths), shared, day, brief)


_shared = lru_cache(maxsize=4096)(tuple[tuple[int, int], ...])
"""Returns equal places as one object, to save memory: nearly all terms of short messages have the same places."""


def spoken_text(message: Message) -> str:
    """Return the text that passages are cut from: the message's own, and a line for each of its calls."""
    functions = [function for call in calls_of(message) if isinstance(function := call.get("function"), dict)]
    lines = (f"{function.get('name')}: {function.get('arguments')}"[:_LONGEST] for function in functions)
    return "\n".join(filter(None, (text_of(message)[:_LONGEST], *lines)))


def terms_and_days(text: str) -> list[str]:
    """List a term for each day that a text names, and its other terms."""
    plain = folded(text)
    return [*(term for _, term in days_in(plain)), *terms_of_folded(plain)]


def asked(text: str) -> str:
    """Return the sentences of a text that ask."""
    return " ".join(_ASKED.findall(text))


def day_term(day: date) -> str:
    """Return the term for a day of the year; no word equals it."""
    return f"{DAY}{day.month}-{day.day}"


def spans_of(text: str) -> Iterator[tuple[int, int]]:
    """Cut a text into pieces not much longer than `PIECE` units, at line ends, else at sentence ends, else between words.

    Pieces do not include the white space around them.
    """
    end = len(text.rstrip())
    at = len(text) - len(text.lstrip())
    is_whole = end - at <= UNSPLIT and _units(text, at, end) <= UNSPLIT
    while at < end:
        cut = end if is_whole else _cut(text, at, end)
        yield at, at + len(text[at:cut].rstrip())
        at = cut
        while at < end and text[at].isspace():
            at += 1


def _cut(text: str, at: int, end: int) -> int:
    """Return the end of the piece that begins at `at`: the last good place in its second half."""
    cut, units = min(at + PIECE, end), 0
    if not text[at:cut].isascii():  # in ASCII, every character is one unit
        cut = at
    while cut < end and units < PIECE and cut < at + PIECE:
        units += _units(text, cut, cut + 1)
        cut += 1
    if end - cut < PIECE and _units(text, cut, end) < PIECE // 4:
        return end
    half = (at + cut) // 2
    for mark in _ENDS:
        places = [found.end() for found in mark.finditer(text, half, cut)]
        if places:
            return places[-1]
    return cut


def _units(text: str, start: int, end: int) -> int:
    return sum(1 if char <= _LAST_LATIN else _WIDE for char in text[start:end])


def days_in(folded: str) -> Iterator[tuple[date | None, str]]:
    """Find the days named in a folded text: each as a date, where its year is given, and as a term."""
    if not _SIGN.search(folded):
        return
    for found in _DATE.finditer(folded):
        parts = {name[0]: value for name, value in found.groupdict().items() if value}
        month = _MONTHS[parts["n"]] if "n" in parts else int(parts["m"])
        try:
            # Without a year, use a leap year, so that 29 February is valid.
            day = date(int(parts.get("y", 2000)), month, int(parts["d"]))
        except ValueError:
            continue
        yield (day if "y" in parts else None), day_term(day)


def written_on(message: Mapping[str, Any]) -> date | None:
    """Return the day that a message gives for itself, in a field beside its content or at its beginning, or None."""
    for name, value in message.items():
        if name not in _NO_TIMES and not name.endswith("id") and (day := _of_field(value)):
            return day
    text = text_of(message)
    opening = _BRACKETED.match(text)
    line = opening.group() if opening else text.lstrip()[:200].split("\n", 1)[0]
    alone = opening or len(line) <= _OPENING
    for found in _DATE.finditer(line.lower()):
        day = next((day for day, _ in days_in(found.group()) if day), None)
        if day and (alone or not found.start()):
            return day
    return None


def _of_field(value: Any) -> date | None:
    """Return the day of a time in ISO 8601, or in seconds since the epoch; None for anything else."""
    try:
        if isinstance(value, str) and 10 <= len(value) <= 40:
            return datetime.fromisoformat(value).date()
        if isinstance(value, int | float) and int(value) in _EPOCH:
            return datetime.fromtimestamp(value, UTC).date()
    except ValueError:
        pass
    return None
