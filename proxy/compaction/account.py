"""Closing note of an answer that has to end early: what was done, with which files, what was settled and what is open.

Code writes it from the history that the client sent and the answer so far. It is meant for people; no model reads it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from proxy.compaction.extract import extract
from proxy.compaction.progress import open_items, todos
from proxy.compaction.results import Result, results_of
from proxy.compaction.shorten import GRAVE, telling_line
from proxy.compaction.source import source_of
from proxy.core.errors import plural
from proxy.core.history.embedded import authored_text
from proxy.core.history.marks import QUOTES, section
from proxy.core.history.rules import constraints
from proxy.core.history.sentences import found_in, newest_within
from proxy.core.history.turns import is_user, newest_user
from proxy.core.request import Message, text_of

_LOOKED_AT = 2_000
"""Characters at the end of a result that are searched for its outcome."""
_FIRST_WORD = re.compile(r"\W{0,20}(\w{1,60})")
_PATH = re.compile(r"(?!\w{3,8}://)(?:.*/.*|.*\.[A-Za-z]\w{0,7})")
_HEADING = re.compile(r"^#{1,4} (.{1,80})", re.MULTILINE)
_BOX = re.compile(r"^\s{0,8}[-*+] \[([ xX])\] (.{1,200})", re.MULTILINE)


def account(
    messages: Sequence[Message], answer: str, *, tokens: int, window: int, steps: Sequence[str], detailed: bool
) -> list[str]:
    """Build the lines of a closing note: one for each section or, if `detailed`, one for each item of a section.

    `messages` is the client's history after its leading system messages, `tokens` the length of the answer, and `steps` what
    the user may do next.
    """
    most, width, room = (5, 200, 600) if detailed else (3, 100, 200)
    newest, results = newest_user(messages), results_of(messages)
    request = "" if newest is None else authored_text(messages[newest])
    rules = constraints(messages, limit=room)
    users = list(filter(is_user, messages))
    stated = section({"content": extract(users, source_of(users), limit=room)}, QUOTES)
    paths = (name for r in results for name in found_in(r.arguments or "") if _PATH.fullmatch(name))
    sections = {
        "Done": [*_done([r for r in results if r.index > (newest or 0)], answer, tokens, window)],
        "Files": [", ".join(newest_within(dict.fromkeys(paths), limit=room))],
        "Settled": [*rules[::-1], *(each for each in stated if each not in request and each not in rules)],
        "Open": [request and f"your request “{_plain(request, 90)}”", *_open_items(messages, results, answer)],
        "Next": steps,
    }
    lines: list[str] = []
    for title, items in sections.items():
        texts = [_plain(item, room if title == "Files" else width) for item in items if item][:most]
        lines += [f"{title}: {text}" for text in (texts if detailed else [" · ".join(texts)]) if text]
    return lines


def _done(turn: Sequence[Result], answer: str, tokens: int, window: int) -> Iterator[str]:
    """Yield what was done in this turn: the answer, the number of calls by tool, then each call with its outcome, newest first."""
    covered = ", ".join(_HEADING.findall(answer)) or (answer and f"up to “…{_plain(answer[-60:], 60)}”")
    yield f"{plural(tokens, 'token')} of the answer{f' in a window of {window}' * (window > 0)}{f' ({covered})' * bool(covered)}"
    if turn:
        tools = ", ".join(f"{name} {number}" for name, number in Counter(r.name for r in turn).most_common(6))
        failed = sum(GRAVE.search(word[1]) is not None for r in turn if (word := _FIRST_WORD.match(r.text)))
        yield f"{plural(len(turn), 'tool call')} ({tools}){f', {failed} failed' * (failed > 0)}"
    for result in reversed(turn):
        outcome = telling_line(result.text[-_LOOKED_AT:]) or "nothing"
        yield f"{result.name}({_plain(result.arguments or '', 70)}) → {_plain(outcome, 90)}"


def _open_items(messages: Sequence[Message], results: Sequence[Result], answer: str) -> list[str]:
    """Return the open items of the newest to-do list: a tool's if there is one, else a Markdown task list in an answer."""
    answers = (text_of(message) for message in reversed(messages) if message.get("role") == "assistant")
    lists = chain(map(todos, reversed(results)), map(_BOX.findall, chain((answer,), answers)))
    return open_items(next(filter(None, lists), []))


def _plain(text: str, width: int) -> str:
    """Return one line of a text that cannot become a link, image or tag in Markdown: it may come from a tool."""
    line = " ".join(text[: 4 * width].split()).replace("](", "] (").replace("<", "(")
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"
