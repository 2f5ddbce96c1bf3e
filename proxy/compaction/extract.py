"""Extract in place of a summary where no model wrote one: the user's own statements, by how much they tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from proxy.compaction.source import (
    Source,
    Statement,
    call_lines,
    is_mentioned,
    statement_of,
    text_without_calls,
    words_of,
)
from proxy.core.history.marks import (
    CLOSE,
    EXTRACT,
    HEADING,
    MORE_QUOTES,
    NAMES,
    OPEN,
    QUOTES,
    headed_list,
    is_extract,
    is_summary,
    section,
)
from proxy.core.history.sentences import sentences
from proxy.core.request import Message, text_of
from proxy.recall.words import folded

_BEFORE, _ANSWERED, _CALLED = "Before that:", "The assistant said:", "Tools called:"
_SHARES = {_BEFORE: 0.25, _ANSWERED: 0.2, _CALLED: 0.12}
"""Of the room that each may take; the rest is for what the user said."""
_LINE, _LINE_READ = 200, 2_000
_SHORTEST = 24
_AGAIN = 0.1
"""Share of its weight that a fact has which another line tells already."""
_QUESTION = 0.5
"""What a question counts of a statement."""
_AROUND = (6, 3, 0)
"""Words on either side with which a fact is told that was left out: as many as let all of them be told."""


def extract(messages: Sequence[Message], source: Source, *, limit: int) -> str:
    """At most `limit` characters besides headings: what the user stated, the newest of the rest; empty if nothing was said.

    What an extract before it kept counts as it did then, so that an extract of an extract is the same again.
    """
    room = limit
    lines: dict[str, list[str]] = {title: [] for title in (_BEFORE, QUOTES, _ANSWERED, _CALLED)}
    lines[_BEFORE] = _picked(_earlier(messages), int(room * _SHARES[_BEFORE]))
    lines[_ANSWERED] = _newest(_answers(messages), int(room * _SHARES[_ANSWERED]))
    lines[_CALLED] = _newest(_called(messages), int(room * _SHARES[_CALLED]))
    spare = room - sum(len(line) + 3 for items in lines.values() for line in items)
    lines[QUOTES] = _picked(source.statements, spare)
    sections = [headed_list(title, items) for title, items in lines.items() if items]
    return "\n".join((EXTRACT, *sections)) if sections else ""


def missing_facts(source: Source, text: str, *, limit: int) -> list[str]:
    """Excerpts of what the user said about facts that a text lacks, in order, at most `limit` characters together.

    Each with some of the words around it, if all of them have room so.
    """
    known = folded(text)
    words = words_of(known)
    missing = {fact.key: fact.weight for fact in source.users if not is_mentioned(fact.key, known, words)}
    excerpts: list[str] = []
    for around in _AROUND:
        excerpts, complete = _excerpts(source, missing, around, limit)
        if complete:
            break
    return excerpts


def _excerpts(source: Source, missing: dict[str, float], around: int, limit: int) -> tuple[list[str], bool]:
    """The missing facts with so many words around each, the weightiest first to get room; whether all got it."""
    found: list[tuple[float, int, str]] = []
    waiting = set(missing)
    for number, statement in enumerate(source.statements):
        for fact in statement.facts:
            if fact.key not in waiting:
                continue
            piece = _around(statement.text, fact.text, around)
            text = folded(piece)
            keys = {each.key for each in statement.facts if each.key in waiting and each.key in text} | {fact.key}
            waiting -= keys
            found.append((max(missing[key] for key in keys), number, piece))
    chosen: list[tuple[int, int, str]] = []
    room, complete = limit, True
    for place, (_, number, piece) in sorted(enumerate(found), key=lambda each: -each[1][0]):
        if len(piece) + 3 <= room:
            room -= len(piece) + 3
            chosen.append((number, place, piece))
        else:
            complete = False
    return [piece for _, _, piece in sorted(chosen)], complete


def _around(sentence: str, fact: str, words: int) -> str:
    at = max(0, sentence.find(fact))
    before, after = sentence[:at].split(" "), sentence[at + len(fact) :].split(" ")
    first, last = before[-1:] if before[-1] else [""], after[:1]
    begin = " ".join((*before[:-1][len(before) - 1 - min(words, len(before) - 1) :], *first))
    end = " ".join((*last, *after[1 : 1 + words]))
    return _line(f"{begin}{fact}{end}" if words else fact)


def _picked(statements: Sequence[Statement], room: int) -> list[str]:
    """Statements in their order, those first to get room that tell most that is not told yet, for their length."""
    unique = {statement.text: statement for statement in statements}
    lines, known = list(unique.items()), set[str]()

    def score(number: int) -> float:
        line, statement = lines[number]
        weight = sum(fact.weight * (_AGAIN if fact.key in known else 1.0) for fact in statement.facts)
        return weight * (_QUESTION if line.endswith(("?", "？")) else 1.0) / (len(line) + 20)  # noqa: RUF001 - of Chinese and Japanese

    prose = any(statement.prose for _, statement in lines)
    waiting = [
        (-score(number), number)
        for number, (line, statement) in enumerate(lines)
        if statement.facts and (statement.prose or not prose)
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
            known.update(fact.key for fact in statement.facts)
    if not chosen and lines and room > _SHORTEST:
        return [lines[min(best, len(lines) - 1)][0][: room - 3].strip()]
    return [lines[number][0] for number in sorted(chosen)]


def _newest(texts: Iterable[str], room: int) -> list[str]:
    """Lines for the first of these, the newest, that there is room for; the oldest of them first."""
    chosen: list[str] = []
    for text in filter(None, texts):
        if len(text) + 3 > room:
            return chosen[::-1] or ([text[: room - 3]] if room > 3 else [])
        room -= len(text) + 3
        chosen.append(text)
    return chosen[::-1]


def _earlier(messages: Sequence[Message]) -> list[Statement]:
    """Statements of earlier summaries that a model wrote, also those that earlier extracts took over."""
    found: list[Statement] = []
    for message in messages:
        if not is_summary(message):
            continue
        lines = section(message, _BEFORE)
        for written in text_of(message).split(f"{OPEN}\n")[1:] if not is_extract(message) else ():
            body = written.split(f"\n{CLOSE}")[0]
            for mark in (f"\n{HEADING}", f"\n{NAMES}", f"\n{MORE_QUOTES}"):
                body = body.split(mark)[0]
            lines += sentences(body, longest=_LINE)
        found += map(statement_of, map(_line, lines))
    return found


def _answers(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        if is_summary(message):
            yield from reversed(section(message, _ANSWERED))
        elif message.get("role") == "assistant":
            yield _line(text_without_calls(message))


def _called(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        if is_summary(message):
            yield from reversed(section(message, _CALLED))
        else:
            yield from (_line(call) for call in reversed(call_lines(message)))


def _line(text: str) -> str:
    """One line of it: what is said or called must not read like lines of its own."""
    return " ".join(text[:_LINE_READ].split())[:_LINE].strip()
