"""Days that are named in texts, and the day on which a message was written, where the history tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

from proxy.core.request import text_of

# English, German, French, Spanish, Portuguese, Italian, Russian; without accents.
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
"""Characters of the first line in which a message tells its day."""
_BRACKETED = re.compile(r"\s*[\[(<{][^\])>}]{0,80}[\])>}]")
_NO_TIMES = frozenset({"role", "content", "name"})
_EPOCH = range(10**9, 4 * 10**9)
"""Seconds that are taken for a time; before 2001 no chat had models."""


def days_in(folded: str) -> Iterator[tuple[date | None, str]]:
    """Days named in a folded text, each as a date where its year is told, and as `month-day`."""
    if not _SIGN.search(folded):
        return
    for found in _DATE.finditer(folded):
        parts = {name[0]: value for name, value in found.groupdict().items() if value is not None}
        month = _MONTHS[parts["n"]] if "n" in parts else int(parts["m"])
        try:
            # A leap year stands for one that is not told.
            day = date(int(parts.get("y", 2000)), month, int(parts["d"]))
        except ValueError:
            continue
        yield (day if "y" in parts else None), month_day(day)


def month_day(day: date) -> str:
    """A day as a term, without its year."""
    return f"{day.month}-{day.day}"


def written_on(message: Mapping[str, Any]) -> date | None:
    """The day that a message gives itself, in a field beside its content or at its beginning; None if it gives none."""
    for name, value in message.items():
        may_be_time = name not in _NO_TIMES and not name.endswith("id")
        if may_be_time and (day := _of_field(value)) is not None:
            return day
    text = text_of(message)
    opening = _BRACKETED.match(text)
    line = text[: opening.end()] if opening is not None else text.lstrip()[:200].split("\n", 1)[0]
    alone = opening is not None or len(line) <= _OPENING
    for found in _DATE.finditer(line.lower()):
        day = next((day for day, _ in days_in(found.group()) if day is not None), None)
        if day is not None and (alone or not found.start()):
            return day
    return None


def _of_field(value: Any) -> date | None:
    """ISO 8601, or seconds since the epoch as clients keep them."""
    try:
        if isinstance(value, str) and 10 <= len(value) <= 40:
            return datetime.fromisoformat(value).date()
        if isinstance(value, int | float) and int(value) in _EPOCH:
            return datetime.fromtimestamp(value, UTC).date()
    except ValueError:
        pass
    return None
