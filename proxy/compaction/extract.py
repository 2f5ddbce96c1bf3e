"""Extract in place of a summary where no model wrote one: the user's own statements, by how much they tell."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from heapq import heapify, heappop, heapreplace
from itertools import islice

from proxy.compaction.source import (
    HARD,
    VITAL,
    Source,
    Statement,
    is_mentioned,
    statement_of,
    text_without_calls,
    words_of,
)
from proxy.core.history.marks import (
    APPENDED,
    CLOSE,
    EXTRACT,
    NOTED,
    OPEN,
    QUOTES,
    headed_list,
    is_extract,
    is_summary,
    section,
)
from proxy.core.history.sentences import newest_within, sentences
from proxy.core.request import Message, text_of
from proxy.recall.words import folded
from proxy.stream.watch import repeats_itself

_BEFORE, _ANSWERED = "Before that:", "Last answers:"
_SHARES = {_BEFORE: 0.25, _ANSWERED: 0.15}
"""Of the room that each may take; the rest is for what the user said."""
_TASKS = 0.4
"""Of the room, what the user said may take where it is tasks: then what was done matters as much."""
_LINE, _ANSWER_READ, _ANSWERS = 240, 2_000, 8
"""Characters of a line and of an answer that is read for one, and the answers that are."""
_AGAIN = 0.1
"""Share of its weight that a fact has which another line tells already."""
_PASSING, _FRAME = 0.5, 60
"""Weight that says nothing, and what a line costs besides its bytes: with them a few full statements win over many bare ones."""
_NOTHING = 0.1
"""Weight up to which a statement says nothing, however much room there is: one short word."""
_QUESTION, _LIFE = 0.5, 4.0
"""What a question counts of a statement, and one on which a life may depend."""
_DATA, _FACTS = 4, 4
"""Lines of data in a message from which on they are a dump that says less than prose, and facts of such a line that count."""
_FEW = 3
"""Statements with figures that have a word in common, up to which a later one may put its figure in the place of an earlier one."""
_DATED = 13
"""Characters of the day in front of a statement."""


def extract(messages: Sequence[Message], source: Source, *, limit: int) -> str:
    """At most `limit` characters besides headings: what the user stated, the newest of the rest; empty if nothing was said.

    What an extract before it kept counts as it did then, so that an extract of an extract is the same again.
    """
    before = _dated(_picked(_earlier(messages), int(limit * _SHARES[_BEFORE])))
    newest = islice(filter(None, _answers(messages)), _ANSWERS)
    answered = newest_within([*newest][::-1], limit=int(limit * _SHARES[_ANSWERED]))
    spare = limit - sum(len(line) + 3 for line in (*before, *answered))
    spare = min(spare, int(limit * _TASKS)) if source.worked else spare
    lines = {_BEFORE: before, QUOTES: _dated(_picked(source.statements, spare)), _ANSWERED: answered}
    if not any(lines.values()) and limit > _DATED:  # then the beginning of what there is
        text = next(filter(None, (*(each.text for each in source.statements), *_answers(messages))), "")
        short = text if len(text) + 3 <= limit else f"{text.removesuffix(' …')[: limit - 5].strip()} …"
        lines[QUOTES if source.statements else _ANSWERED] = [short] if text else []
    sections = [headed_list(title, items) for title, items in lines.items() if items]
    return "\n".join((EXTRACT, *sections)) if sections else ""


def missing_statements(source: Source, text: str, *, limit: int) -> list[str]:
    """The user's statements with facts that a text lacks, at most `limit` characters together, those that tell most."""
    known = folded(text)
    words = words_of(known)
    keys = {fact.key for each in source.statements for fact in each.facts if fact.weight >= HARD}
    mentioned = {key for key in keys if is_mentioned(key, known, words)}
    lacking = [s for s in source.statements if any(f.key in keys - mentioned for f in s.facts)]
    return _dated(_picked(lacking, limit, mentioned))


def _picked(statements: Sequence[Statement], room: int, mentioned: Iterable[str] = ()) -> list[Statement]:
    """Statements in their order, those first to get room that tell most that is not told yet, for their length."""
    lines, known = list({statement.text: statement for statement in statements}.values()), set(mentioned)

    def score(statement: Statement) -> float:
        facts = statement.facts if statement.prose else statement.facts[:_FACTS]
        weight = sum(fact.weight * (_AGAIN if fact.key in known else 1.0) for fact in facts)
        weight *= _LIFE if any(VITAL.match(fact.key) for fact in facts) else 1.0
        weight *= _QUESTION if statement.text.endswith(("?", "？")) else 1.0  # noqa: RUF001 - of Chinese and Japanese
        size = len(statement.text.encode(errors="surrogatepass")) + _FRAME
        return (weight - _PASSING) / size

    prose = any(statement.prose for statement in lines)
    data = Counter(statement.place for statement in lines if not statement.prose)
    waiting = [
        (-score(statement), number)
        for number, statement in enumerate(lines)
        if sum(fact.weight for fact in statement.facts) > _NOTHING
        and (statement.prose or not prose or data[statement.place] < _DATA)
    ]
    heapify(waiting)
    chosen: set[int] = set()
    days: set[date | None] = {None}
    later = _later_values(lines)
    while waiting:
        before, number = waiting[0]
        now = -score(lines[number])
        if now > before:
            heapreplace(waiting, (now, number))
            continue
        heappop(waiting)
        # What may have changed since never comes without what may have changed it.
        both = {number, later.get(number, number)}
        new = [lines[each] for each in both - chosen]
        size = sum(len(each.text) + 3 + _DATED * (each.day not in days) for each in new)
        if size <= room:
            room -= size
            chosen |= both
            days.update(each.day for each in new)
            known.update(fact.key for each in new for fact in each.facts)
    return [lines[number] for number in sorted(chosen)]


def _later_values(lines: Sequence[Statement]) -> dict[int, int]:
    """Find, for statements with a figure, the last one after it with another figure and a word that few of them have."""
    having: dict[str, list[int]] = {}
    for number, statement in enumerate(lines):
        for key in {fact.key for fact in statement.facts} if any(map(str.isdecimal, statement.text)) else ():
            having.setdefault(key, []).append(number)
    return dict(sorted((number, few[-1]) for few in having.values() if len(few) <= _FEW for number in few[:-1]))


def _dated(statements: Iterable[Statement]) -> list[str]:
    """Their lines, each with its day where that is another than before."""
    lines, day = list[str](), None
    for statement in statements:
        new = statement.day not in (None, day)
        lines.append(f"({statement.day}) {statement.text}" if new else statement.text)
        day = statement.day or day
    return lines


def _earlier(messages: Sequence[Message]) -> list[Statement]:
    """Statements of earlier summaries that a model wrote, also those that earlier extracts took over."""
    found: list[Statement] = []
    for message in messages:
        if not is_summary(message):
            continue
        lines = section(message, _BEFORE)
        for written in text_of(message).split(f"{OPEN}\n")[1:] if not is_extract(message) else ():
            body = written
            for mark in (CLOSE, *APPENDED):
                body = body.split(f"\n{mark}")[0]
            lines += sentences(body, longest=_LINE)
        found += (statement_of(" ".join(line.split())) for line in lines)
    return found


def _answers(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        if is_summary(message):
            yield from reversed(section(message, _ANSWERED))
        elif message.get("role") == "assistant" and message.get("content") != NOTED:
            text = text_without_calls(message)
            yield "" if repeats_itself(text) else _beginning(text)


def _beginning(text: str) -> str:
    """The first sentences of an answer in one line, without code; each to its end."""
    line = ""
    for sentence in sentences(text[:_ANSWER_READ].split("```", maxsplit=1)[0], longest=_LINE):
        if len(line) + 1 + len(sentence) > _LINE:
            break
        line = f"{line} {' '.join(sentence.split())}".strip()
    return line
