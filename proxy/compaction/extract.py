"""Extract, made by code in place of a model's summary: the user's own statements, chosen by how much they say."""

from collections import Counter, defaultdict
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

# Headings are noun phrases: SmolLM2 answered 2 of 8 questions with "The user said: …" when extracts used these words,
# and 1 of 8 since.
_BEFORE, _ANSWERED = "Before that:", "Last answers:"
_SHARES = {_BEFORE: 0.25, _ANSWERED: 0.15}
"""Share of the room that each section may take; the rest is for the user's statements."""
_TASKS = 0.4
"""Share of the room for the user's statements if they are tasks: then the work done matters as much."""
_LINE, _ANSWER_READ, _ANSWERS = 240, 2_000, 8
"""Characters of a line, characters that are read of an answer to find one, and number of answers."""
_AGAIN = 0.1
"""Factor on the weight of a fact that another chosen line has already."""
# Weighed by density alone, "- Hi!" was kept and "Odd is allergic to hazelnuts" was lost.
_PASSING, _FRAME = 0.5, 60
"""Weight and bytes that each line is charged extra, so that a few rich statements win over many poor ones."""
_NOTHING = 0.1
"""Weight of a single short word: a statement that weighs no more is left out, however much room there is."""
_QUESTION, _LIFE = 0.5, 4.0
"""Factor on the weight of a question, and of a statement on which a life may depend."""
_DATA, _FACTS = 4, 4
"""Lines of data that make a message a dump, worth less than prose; and facts of a line of data that count."""
_FEW = 3
"""Most statements with figures that share a word for which a later one is taken to update the figure of an earlier one."""
_DATED = 13
"""Characters of the date before a statement."""


def extract(messages: Sequence[Message], source: Source, *, limit: int) -> str:
    """Make an extract of at most `limit` characters, headings not counted; empty if nothing was said.

    It has the user's statements and the beginnings of the newest answers. Lines from an earlier extract keep their rank, so
    that an extract of an extract is the same again.
    """
    before = _dated(_picked(_earlier(messages), int(limit * _SHARES[_BEFORE])))
    newest = islice(filter(None, _answers(messages)), _ANSWERS)
    answered = newest_within([*newest][::-1], limit=int(limit * _SHARES[_ANSWERED]))
    spare = limit - sum(len(line) + 3 for line in (*before, *answered))
    spare = min(spare, int(limit * _TASKS)) if source.worked else spare
    lines = {_BEFORE: before, QUOTES: _dated(_picked(source.statements, spare)), _ANSWERED: answered}
    if not any(lines.values()) and limit > _DATED:  # nothing fits whole, so take a beginning
        text = next(filter(None, (*(each.text for each in source.statements), *_answers(messages))), "")
        short = text if len(text) + 3 <= limit else f"{text.removesuffix(' …')[: limit - 5].strip()} …"
        lines[QUOTES if source.statements else _ANSWERED] = [short] if text else []
    sections = [headed_list(title, items) for title, items in lines.items() if items]
    return "\n".join((EXTRACT, *sections)) if sections else ""


def missing_statements(source: Source, text: str, *, limit: int) -> list[str]:
    """Return the user's most telling statements with facts that a text lacks, in at most `limit` characters together."""
    known = folded(text)
    words = words_of(known)
    keys = {fact.key for each in source.statements for fact in each.facts if fact.weight >= HARD}
    mentioned = {key for key in keys if is_mentioned(key, known, words)}
    lacking = [s for s in source.statements if any(f.key in keys - mentioned for f in s.facts)]
    return _dated(_picked(lacking, limit, mentioned))


def _picked(statements: Sequence[Statement], room: int, mentioned: Iterable[str] = ()) -> list[Statement]:
    """Pick the statements with the most new facts for their length until `room` is used, and return them in their order.

    Scores only fall as facts become known, so a heap entry whose score is out of date is put back with the present one.
    """
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
        # A figure that may be outdated never comes without the later statement that may have changed it.
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
    """Map each statement with a figure to the last later one with a figure that shares one of its rare words."""
    having: dict[str, list[int]] = {}
    for number, statement in enumerate(lines):
        for key in {fact.key for fact in statement.facts} if any(map(str.isdecimal, statement.text)) else ():
            having.setdefault(key, []).append(number)
    return dict(sorted((number, few[-1]) for few in having.values() if len(few) <= _FEW for number in few[:-1]))


def newer_statements(earlier: Sequence[Statement], later: Sequence[Statement]) -> tuple[str, ...]:
    """Return later statements that may give an earlier one another name or figure, since they have much in common.

    That is a rare word, and as many words as the square root of the shorter one's.
    """
    # With a rare word alone, a film "called Taxi Driver" was taken for news of a novel "called Silent Separation".
    weighed = [[(s.text, {f.key: f.weight for f in s.facts}) for s in said] for said in (earlier, later)]
    old, new = ([each for each in said if max(each[1].values(), default=0.0) >= HARD] for said in weighed)
    often = Counter(key for _, facts in (*old, *new) for key in facts)
    having = defaultdict[str, list[dict[str, float]]](list)
    for _, facts in old:
        for key in facts:
            having[key].append(facts)
    rare = {key for key in having if often[key] <= _FEW}
    return tuple(
        text for text, facts in new if any(_changes(facts, o) for key in facts.keys() & rare for o in having[key])
    )


def _changes(facts: dict[str, float], earlier: dict[str, float]) -> bool:
    words = min(sum(_NOTHING < weight < HARD for weight in each.values()) for each in (facts, earlier))
    value = any(weight >= HARD and key not in earlier for key, weight in facts.items())
    return value and len(facts.keys() & earlier.keys()) ** 2 >= words


def _dated(statements: Iterable[Statement]) -> list[str]:
    """Return the lines of statements, with a date wherever it changes."""
    lines, day = list[str](), None
    for statement in statements:
        new = statement.day not in (None, day)
        lines.append(f"({statement.day}) {statement.text}" if new else statement.text)
        day = statement.day or day
    return lines


def _earlier(messages: Sequence[Message]) -> list[Statement]:
    """Collect the statements of earlier summaries by a model, including those carried on by earlier extracts."""
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
    """Return the first whole sentences of an answer in one line, without code."""
    line = ""
    for sentence in sentences(text[:_ANSWER_READ].split("```", maxsplit=1)[0], longest=_LINE):
        if len(line) + 1 + len(sentence) > _LINE:
            break
        line = f"{line} {' '.join(sentence.split())}".strip()
    return line
