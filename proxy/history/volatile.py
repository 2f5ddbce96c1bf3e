"""What of a system prompt lasts, and what only tells the time, the place in a count, or the name of a run.

A summary is made under a system prompt and may repeat what that says, so it holds only under the same one. But many
clients put a clock into theirs, which must not cost a summary with every minute. Numbers as such last: a customer's, or a limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any

from proxy.neutral.request import Message
from proxy.wire.jsontext import dumps

_MONTH = (
    r"(?:jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|f[ée]vr(?:ier)?|mar(?:ch|s|zo|ço)?|märz?|apr(?:il|ile)?|avr(?:il)?|"
    r"may|mai|mayo|maggio|maio|mei|june?|juni|juin|junio|giugno|junho|july?|juli|juillet|julio|luglio|julho|"
    r"aug(?:ust|ustus)?|août|ago(?:sto)?|sept?(?:ember|embre|iembre)?|set(?:embre|tembre|embro)?|"
    r"oct(?:ober|obre|ubre)?|okt(?:ober)?|ott(?:obre)?|out(?:ubro)?|nov(?:ember|embre|iembre|embro)?|"
    r"dec(?:ember)?|dez(?:ember|embro)?|d[ée]c(?:embre)?|dic(?:iembre|embre)?|enero|ene|febrero|marzo|maart|abril|abr|"
    r"janeiro|fevereiro|março|gennaio|febbraio)\.?"
)
_DAY = (
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|sonnabend|"
    r"lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|mi[ée]rcoles|jueves|viernes|s[áa]bado|domingo|"
    r"luned[ìi]|marted[ìi]|mercoled[ìi]|gioved[ìi]|venerd[ìi]|sabato|domenica|"
    r"(?:segunda|terça|quarta|quinta|sexta)-feira|(?:maan|dins|woens|donder|vrij|zater|zon)dag)\b"
)
_ZONE = r"(?-i:\s?(?:Z|UTC|GMT|[A-Z]{1,4}T)\b)?(?:\s?[+-]\d{2}:?\d{2})?"
_TIME = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d{{1,9}})?)?(?:\s?[ap]\.?m\b\.?)?{_ZONE}"
_NUMBER = r"\d[\d,.]{0,15}+"
_UNIT = r"(?:%|percent|tokens?|messages?|turns?|steps?|requests?|seconds?|secs?|minutes?|mins?|hours?|days?|ms|[smhd])"
_COUNTED = r"(?:turn|step|round|iteration|attempt|message|request)"
_SPENT = r"(?:used|left|remaining|spent|elapsed|uptime|battery|countdown|counter|token count)"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_DIGEST = r"(?=[a-f]{0,40}\d)[0-9a-f]{16,128}\b"

CLOCKS, COUNTS, IDS = "clocks", "counts", "ids"
KINDS = (CLOCKS, COUNTS, IDS)
"""What is volatile: times and dates, places in a count (a countdown too), names of runs."""

_FIGURES = (
    (IDS, _UUID),
    (IDS, _DIGEST),
    (IDS, r"[0-7][0-9A-HJKMNP-TV-Z]{25}\b"),  # a ULID
    (CLOCKS, rf"\d{{4}}(?P<sep>[-/.])\d{{1,2}}(?P=sep)\d{{1,2}}(?!\d)(?:[T ]\s?{_TIME})?"),
    (CLOCKS, r"\d{1,2}(?P<dot>[-/.])\d{1,2}(?P=dot)(?:19|20)\d{2}\b"),
    (
        CLOCKS,
        rf"\d{{1,2}}(?:st|nd|rd|th|º|\.)?[\s-]\s?(?:(?:of|de)\s)?{_MONTH}(?:,?[\s-]\s?(?:(?:de|del)\s)?\d{{4}})?\b",
    ),
    (CLOCKS, _TIME),
    (CLOCKS, r"\d{1,2}(?:h\d{2}|\s?[ap]\.?m)\b"),
    (
        CLOCKS,
        r"1[5-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?\b",
    ),  # seconds since the epoch, or parts of them
    (COUNTS, rf"{_NUMBER}\s?{_UNIT}?\s{{1,2}}(?:left|remaining|used|spent|elapsed|ago|so far)\b"),
    (COUNTS, rf"{_NUMBER}\s?(?:/|of|out of)\s?{_NUMBER}\b"),
)
_WORDS = (
    (IDS, _UUID),
    (IDS, _DIGEST),
    (
        IDS,
        r"(?:req|request|sess|session|run|msg|chat|conv|conversation|thread|trace)[_-](?=[\w-]{0,40}\d)[\w-]{6,64}",
    ),
    (CLOCKS, _DAY),
    (CLOCKS, r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?=,?\s(?:\d|[a-z]{3}\s{1,2}\d))"),
    (CLOCKS, rf"{_MONTH}\s{{1,2}}\d{{1,2}}(?:st|nd|rd|th)?(?!\d)(?:,?\s\d{{4}})?\b"),
    (CLOCKS, rf"{_MONTH},?\s\d{{4}}\b"),
    (
        COUNTS,
        rf"{_COUNTED}s?\s?(?:no\.?|number|count)?\s?[:=#]?\s?#?\d{{1,12}}\b(?:\s?(?:/|of|out of)\s?{_NUMBER}\b)?",
    ),
    (COUNTS, rf"{_SPENT}\s?[:=]?\s?{_NUMBER}\s?{_UNIT}?(?!\w)"),
)


@cache
def _volatile(kinds: frozenset[str]) -> re.Pattern[str]:
    """Tried where a word begins, and there only those that can begin so: a prompt is long, and nearly nothing in it volatile."""
    begun = ((r"\d", _FIGURES), (r"[^\W\d]", _WORDS))
    tried = (
        rf"(?={first})(?:{'|'.join(pattern for kind, pattern in patterns if kind in kinds)})"
        for first, patterns in begun
    )
    return re.compile(rf"(?<!\w)(?:{'|'.join(tried)})", re.IGNORECASE)


_NAMED = re.compile(rf"(?<!\w){_UUID}", re.IGNORECASE)
"""First, because eight digits may be taken for a count of what stands in front of them."""
_EASTERN = re.compile(
    r"\d{4}\s?[年년]\s?\d{1,2}\s?[月월]\s?\d{1,2}\s?[日일]|\d{1,2}:\d{2}(?::\d{2})?|"
    r"(?:星期|周|週)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일"
)
"""Dates, times and days where no spaces are between words."""
_ALL = frozenset(KINDS)
_MARK = "\N{MIDDLE DOT}"
_LONGEST = 2**16
"""Characters of a system prompt that are looked through; a longer one lasts as it is."""
_LINE = 2_000
"""Characters of a line that is remembered."""


def lasting_digest(system: Sequence[Message]) -> str:
    """A digest of system messages that stays when only clocks, counts and names of runs in them change."""
    said: tuple[Any, ...] = tuple([message.get("content") for message in system])
    plain = {type(content) for content in said} == {str} and sum(map(len, said)) <= _LONGEST
    return _digest_known(said) if plain else _digest(said)


def _digest(said: Sequence[object]) -> str:
    if not said:
        return ""
    told = [_lasting(content) for content in said]
    return blake2b(dumps(told), digest_size=12, person=b"spillway-system").hexdigest()


_digest_known = lru_cache(maxsize=64)(_digest)
"""Every request of a conversation asks again."""


def without_volatile(text: str) -> str:
    """A text with a mark in place of what only tells the time, a place in a count, or the name of a run."""
    return "\n".join(
        _stilled(line) if len(line) > _LINE else _remembered(line) for line in text.strip().split("\n")
    )


def _lasting(content: object) -> object:
    if isinstance(content, str):
        return without_volatile(content) if len(content) <= _LONGEST else content
    if isinstance(content, list):
        return [_lasting(part) for part in content]
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return _lasting(content["text"])
    return content


def changed_kinds(before: str, after: str, allowed: Collection[str]) -> frozenset[str] | None:
    """Which of the `allowed` kinds two lines differ in; None: in more than these."""
    if len(before) > _LINE or len(after) > _LINE:
        return None
    kinds = frozenset(allowed)
    if not kinds or _stilled(before, kinds) != _stilled(after, kinds):
        return None
    return frozenset(
        kind
        for kind in kinds
        if kinds == {kind} or _stilled(before, kinds - {kind}) != _stilled(after, kinds - {kind})
    )


def _stilled(line: str, kinds: frozenset[str] = _ALL) -> str:
    if CLOCKS in kinds and not line.isascii():
        line = _EASTERN.sub(_MARK, line)
    if IDS in kinds:
        line = _NAMED.sub(_MARK, line)
    return " ".join(_volatile(kinds).sub(_MARK, line).split())


_remembered = lru_cache(maxsize=8192)(_stilled)
