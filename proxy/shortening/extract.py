"""What stands in place of a summary where no model wrote one: the user's own statements, by how much they tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from proxy.history.marks import (
    CLOSE,
    EXTRACT,
    HEADING,
    MORE_SAID,
    NAMES,
    OPEN,
    SAID,
    headed_list,
    is_extract,
    is_summary,
    section,
)
from proxy.history.sentences import sentences
from proxy.neutral.request import Message, text_of
from proxy.recall.words import folded
from proxy.shortening.facts import facts_in, is_prose, is_told, words_of
from proxy.shortening.source import Source, Statement, source_of
from proxy.shortening.transcript import calls_made, said_in

_BEFORE, _ANSWERED, _CALLED = "Before that:", "The assistant said:", "Tools called:"
_SHARES = {_BEFORE: 0.25, _ANSWERED: 0.2, _CALLED: 0.12}
"""Of the room that each may take; the rest is for what the user said."""
_LINE, _LINE_READ = 200, 2_000
_SHORTEST = 24
_AGAIN = 0.1
"""Share of its weight that a fact has which another line tells already."""
_ASKED = 0.5
"""What a question counts of a statement."""
_AROUND = (6, 3, 0)
"""Words on either side with which a fact is told that was left out: as many as let all of them be told."""


def extract(messages: Sequence[Message], source: Source, *, limit: int) -> str:
    """At most `limit` characters besides headings: what the user stated, the newest of the rest; empty if nothing was said.

    What an extract before it kept counts as it did then, so that an extract of an extract is the same again.
    """
    room = limit
    lines: dict[str, list[str]] = {title: [] for title in (_BEFORE, SAID, _ANSWERED, _CALLED)}
    lines[_BEFORE] = _picked(_earlier(messages), int(room * _SHARES[_BEFORE]))
    lines[_ANSWERED] = _newest(_answers(messages), int(room * _SHARES[_ANSWERED]))
    lines[_CALLED] = _newest(_called(messages), int(room * _SHARES[_CALLED]))
    left = room - sum(len(line) + 3 for items in lines.values() for line in items)
    lines[SAID] = _picked(source.statements, left)
    told = [headed_list(title, items) for title, items in lines.items() if items]
    return "\n".join((EXTRACT, *told)) if told else ""


def told_by_code(messages: Sequence[Message], *, limit: int) -> str:
    """An extract of messages of which nothing is known yet."""
    return extract(messages, source_of(messages), limit=limit)


def facts_left_out(source: Source, text: str, *, limit: int) -> list[str]:
    """What the user said of facts that a text does not have, in order, at most `limit` characters together.

    Each with some of the words around it, if all of them have room so.
    """
    known = folded(text)
    words = words_of(known)
    missing = {
        each.fact.key: each.weight for each in source.most_told if not is_told(each.fact.key, known, words)
    }
    told: list[str] = []
    for around in _AROUND:
        told, whole = _told(source, dict(missing), around, limit)
        if whole:
            break
    return told


def _told(source: Source, missing: dict[str, float], around: int, limit: int) -> tuple[list[str], bool]:
    """The missing facts with so many words around each, the weightiest first to get room; whether all got it."""
    found: list[tuple[float, int, str]] = []
    left = set(missing)
    for number, statement in enumerate(source.statements):
        for fact in statement.facts:
            if fact.key not in left:
                continue
            piece = _around(statement.text, fact.text, around)
            told = folded(piece)
            keys = {each.key for each in statement.facts if each.key in left and each.key in told} | {
                fact.key
            }
            left -= keys
            found.append((max(missing[key] for key in keys), number, piece))
    chosen: list[tuple[int, int, str]] = []
    room, whole = limit, True
    for place, (_, number, piece) in sorted(enumerate(found), key=lambda each: -each[1][0]):
        if len(piece) + 3 <= room:
            room -= len(piece) + 3
            chosen.append((number, place, piece))
        else:
            whole = False
    return [piece for _, _, piece in sorted(chosen)], whole


def _around(sentence: str, fact: str, words: int) -> str:
    at = max(0, sentence.find(fact))
    before, after = sentence[:at].split(" "), sentence[at + len(fact) :].split(" ")
    first, last = before[-1:] if before[-1] else [""], after[:1]
    begin = " ".join((*before[:-1][len(before) - 1 - min(words, len(before) - 1) :], *first))
    end = " ".join((*last, *after[1 : 1 + words]))
    return _line(f"{begin}{fact}{end}" if words else fact)


def _picked(statements: Sequence[Statement], room: int) -> list[str]:
    """Statements in their order, those first to get room that tell most that is not told yet, for their length."""
    unique = {_line(statement.text): statement for statement in statements}
    lines, told = list(unique.items()), set[str]()

    def score(number: int) -> float:
        line, statement = lines[number]
        weight = sum(fact.weight * (_AGAIN if fact.key in told else 1.0) for fact in statement.facts)
        return weight * (_ASKED if line.endswith(("?", "？")) else 1.0) / (len(line) + 20)  # noqa: RUF001 - of Chinese and Japanese

    prose = any(is_prose(line) for line, _ in lines)
    waiting = [
        (-score(number), number)
        for number, (line, statement) in enumerate(lines)
        if statement.facts and (is_prose(line) or not prose)
    ]
    heapify(waiting)
    best = waiting[0][1] if waiting else 0
    chosen: list[int] = []
    while waiting:
        before, number = waiting[0]
        now = -score(number)
        if now > before:
            heapreplace(waiting, (now, number))
            continue
        heappop(waiting)
        line, statement = lines[number]
        if len(line) + 3 <= room:
            room -= len(line) + 3
            chosen.append(number)
            told.update(fact.key for fact in statement.facts)
    if not chosen and lines and room > _SHORTEST:
        return [lines[min(best, len(lines) - 1)][0][: room - 3].strip()]
    return [lines[number][0] for number in sorted(chosen)]


def _newest(texts: Iterable[str], room: int) -> list[str]:
    """Lines for the first of these, the newest, that there is room for; the oldest of them first."""
    kept: list[str] = []
    for text in filter(None, texts):
        if len(text) + 3 > room:
            return kept[::-1] or ([text[: room - 3]] if room > 3 else [])
        room -= len(text) + 3
        kept.append(text)
    return kept[::-1]


def _earlier(messages: Sequence[Message]) -> list[Statement]:
    """What earlier summaries tell that a model wrote, and what earlier extracts kept of such."""
    told: list[Statement] = []
    for message in messages:
        if not is_summary(message):
            continue
        lines = section(message, _BEFORE)
        for written in text_of(message).split(f"{OPEN}\n")[1:] if not is_extract(message) else ():
            body = written.split(f"\n{CLOSE}")[0]
            for mark in (f"\n{HEADING}", f"\n{NAMES}", f"\n{MORE_SAID}"):
                body = body.split(mark)[0]
            lines += sentences(body, longest=_LINE)
        told += (Statement(line, tuple(facts_in(line))) for line in lines)
    return told


def _answers(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        if is_summary(message):
            yield from reversed(section(message, _ANSWERED))
        elif message.get("role") == "assistant":
            yield _line(said_in(message))


def _called(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        if is_summary(message):
            yield from reversed(section(message, _CALLED))
        else:
            yield from (_line(call) for call in reversed(calls_made(message)))


def _line(text: str) -> str:
    """One line of it: what is said or called must not read like lines of its own."""
    return " ".join(text[:_LINE_READ].split())[:_LINE].strip()
