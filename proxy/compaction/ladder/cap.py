"""Cap oversize tool results as far as needed: beginning, end and what looks like an error stay, and each cut says its size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.compaction.ladder.base import Reduction
from proxy.compaction.ladder.results import Result, by_message, results_of, unread_from, with_texts
from proxy.compaction.middles import water_level
from proxy.compaction.policy import BYTES_PER_TOKEN, ResultLimits
from proxy.core.history.turns import is_result, newest_user
from proxy.core.request import Message

_LEAST = 400
"""Characters that are left of a result at least: below that the marks would take more than they save."""
_LEAST_LINE = 100
_LEAST_LINES = 5
_LINES_OUT = "[… {} line{}, {} characters left out here …]"
_LINES_MARKED = re.compile(r"\[… (\d{1,12}) lines?, (\d{1,12}) characters left out here …\]")
_CHARACTERS_OUT = "[… {} characters left out …]"
_MARK_ROOM = 72
"""Characters of a mark with its line end, at most."""
_TRIES = 4
_SCANNED = 50_000
"""Lines that are searched for errors."""
_GRAVE = re.compile(r"error|exception|traceback|fail(?:ed|ure)|panic|fatal|abort|denied", re.IGNORECASE)
_LESS_GRAVE = re.compile(r"warn|not found|cannot|unable|timed? ?out", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_COMMANDS = frozenset(
    {"bash", "sh", "shell", "zsh", "cmd", "command", "commands", "terminal", "console"}
    | {"exec", "execute", "run", "powershell", "python"}
)
_LISTINGS = frozenset({"ls", "dir", "directory", "tree", "glob", "folder"})
_SEARCHES = frozenset({"search", "grep"})
_LISTING_COMMAND = re.compile(r'^\{\s*"(?:command|cmd)"\s*:\s*"\s*(?:ls|dir|tree|find|fd)\b[^|;&"\\]*"')


def cap_results(reduction: Reduction) -> Reduction:
    """Cap oversize results between `floor` and `tail` until the budget is kept; never what the model has not read yet."""
    limits = reduction.limits.results
    end = min(unread_from(reduction.messages), reduction.tail)
    if limits is None or reduction.floor >= end:
        return reduction
    messages, costs = list(reduction.messages), list(reduction.costs)
    user, excess = newest_user(messages), reduction.total - reduction.budget
    for index, results in by_message(results_of(messages)).items():
        if excess <= 0 or not reduction.floor <= index < end or index == user:
            continue
        room = costs[index] - excess
        short = {r: text for r in results if (text := _capped(r, reduction, limits, room)) != r.text}
        if short:
            messages[index] = with_texts(messages[index], short)
            excess -= costs[index] - (cost := sum(reduction.cost([messages[index]])))
            costs[index] = cost
    capped = replace(reduction, messages=messages, costs=costs)
    return capped if capped.total < reduction.total else reduction


def cap_unread(reduction: Reduction) -> Reduction:
    """Shorten what the model has not read yet, its largest results first, until `enough` is kept; `unread` tokens stay.

    The last thing to give up: the model has just asked for it.
    """
    messages = list(reduction.messages)
    start = unread_from(messages)
    unread = {i: group for i, group in by_message(results_of(messages)).items() if i >= start}
    sizes = [reduction.costs[index] for index in unread]
    wanted = max(reduction.unread, max(reduction.budget, reduction.enough) - (reduction.total - sum(sizes)))
    if sum(sizes) <= wanted:
        return reduction
    level = water_level(sizes, wanted)
    for index, results in unread.items():
        texts = {r: _filled(r, reduction, level / len(results)) for r in results}
        messages[index] = with_texts(messages[index], {r: text for r, text in texts.items() if text != r.text})
    capped = reduction.with_messages(messages)
    return capped if capped.total < reduction.total else reduction


def within_limits(messages: Sequence[Message], limits: ResultLimits) -> Sequence[Message]:
    """The history with each tool result within the limits, however much room there is; the same object if all are.

    What becomes of a result depends on it and its call alone, so it is the same on every turn. A message with words of the
    user stays as it is.
    """
    changed: dict[int, Message] = {}
    for index, results in by_message(results_of(messages)).items():
        short = {r: text for r in results if (text := _limited(r, limits)) is not r.text}
        if short and is_result(messages[index]):
            changed[index] = with_texts(messages[index], short)
    return [changed.get(index, each) for index, each in enumerate(messages)] if changed else messages


def _limited(result: Result, limits: ResultLimits) -> str:
    text = result.text
    if len(text) <= _LEAST or result.is_note:
        return text
    bounds, room = _bounds(result, limits), limits.tokens * BYTES_PER_TOKEN
    for _ in range(_TRIES):
        size = len(text.encode(errors="surrogatepass"))
        within = bounds if size <= room else bounds.within(max(_LEAST, len(text) * room // size))
        if (short := shortened(text, within)) == text:
            break
        text = short
    return text


@dataclass(frozen=True, slots=True)
class _Bounds:
    lines: int
    line: int
    characters: int

    def within(self, characters: int) -> _Bounds:
        return _Bounds(self.lines, self.line, min(self.characters, characters))


def _capped(result: Result, reduction: Reduction, limits: ResultLimits, room: float) -> str:
    """The text in `room` tokens, or if that is less within all limits; the text itself if capping would not save tokens."""
    text = result.text
    if len(text) <= _LEAST:
        return text
    bounds, tokens = _bounds(result, limits), _counter(reduction)
    short = shortened(text, bounds)
    if short == text and reduction.costs[result.index] <= limits.tokens:
        return text
    least = _within_tokens(short, tokens, limits.tokens, bounds)
    if room > tokens(least):
        short = _filled(result, reduction, room)
        least = short if tokens(short) <= room else least
    return least if least != text and tokens(least) < tokens(text) else text


def _filled(result: Result, reduction: Reduction, room: float) -> str:
    """Cut the text to so many tokens, whatever its lines are like."""
    text = result.text
    bounds = _Bounds(max(_LEAST_LINES, text.count("\n") + 1), max(_LEAST_LINE, len(text)), max(_LEAST, len(text)))
    return _within_tokens(text, _counter(reduction), room, bounds)


def _counter(reduction: Reduction) -> Callable[[str], float]:
    def tokens(text: str) -> float:
        return sum(reduction.cost([{"role": "tool", "content": text}]))

    return tokens


def _within_tokens(text: str, tokens: Callable[[str], float], most: float, bounds: _Bounds) -> str:
    """Shortened until it has so few tokens, as far as that goes."""
    short, room = text, len(text)
    for last in (*[False] * _TRIES, True):
        counted = tokens(short)
        if counted <= most or len(short) <= _LEAST:
            break
        # Tokens are not spread evenly over the characters, so a guess may miss.
        room = _LEAST if last else max(_LEAST, int(min(room, len(short)) * 0.95 * most / counted))
        short = shortened(text, bounds.within(room))
    return short


def _bounds(result: Result, limits: ResultLimits) -> _Bounds:
    words = {word.lower() for word in _WORDS.findall(result.name)}
    command = bool(words & _COMMANDS)
    listing = (bool(words & _LISTINGS) or {"list", "files"} <= words) and not words & _SEARCHES
    if command and _LISTING_COMMAND.match(result.arguments or ""):
        listing = True
    # One line more than entries, for the mark.
    lines = min(limits.lines, limits.entries + 1) if listing else limits.lines
    characters = limits.output_characters if command else len(result.text)
    return _Bounds(max(_LEAST_LINES, lines), max(_LEAST_LINE, limits.line_characters), max(_LEAST, characters))


def shortened(text: str, bounds: _Bounds) -> str:
    """The text within its bounds, marks and line ends included, so that doing it again changes nothing."""
    lines = [_cut(line, bounds.line) for line in text.split("\n")]
    if len(lines) > bounds.lines or _length(lines) > bounds.characters + 1:
        # A line takes a quarter of the room at most, unless there are so few that all have room for more.
        level = water_level([len(line) + 1 for line in lines], bounds.characters - _MARK_ROOM)
        longest = max(_LEAST_LINE, min(bounds.line, max(bounds.characters // 4, int(level) - 1)))
        lines = [_cut(line, longest) for line in lines]
        if len(lines) > bounds.lines or _length(lines) > bounds.characters + 1:
            lines = _Selection(lines, bounds).render()
    return "\n".join(lines)


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    # The mark for all of it is the longest that can be needed.
    keep = most - len(_CHARACTERS_OUT.format(len(line)))
    return line[: keep - keep // 2] + _CHARACTERS_OUT.format(len(line) - keep) + line[len(line) - keep // 2 :]


def _length(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


class _Selection:
    """Selection of lines: two fifths of the room for the beginning, as much for the end, the rest for errors."""

    def __init__(self, lines: Sequence[str], bounds: _Bounds) -> None:
        self._lines = lines
        self._kept: set[int] = set()
        # There is at least one mark.
        self._lines_left = bounds.lines - 1
        self._characters_left = bounds.characters - _MARK_ROOM
        share = self._lines_left * 2 // 5, self._characters_left * 2 // 5
        first = self._take(range(len(lines)), *share)
        last = self._take(range(len(lines) - 1, first - 1, -1), *share)
        end = len(lines) - last
        self._take_errors(first, end)
        self._take(range(end - 1, first - 1, -1), self._lines_left, self._characters_left)

    def _take(self, indexes: Iterable[int], lines: int, characters: int) -> int:
        """Keep lines in that order until one does not fit; how many were passed."""
        passed = 0
        for index in indexes:
            if index not in self._kept:
                size = len(self._lines[index]) + 1
                if lines < 1 or characters < size:
                    break
                lines, characters = lines - 1, characters - size
                self._keep(index)
            passed += 1
        return passed

    def _keep(self, index: int) -> None:
        self._kept.add(index)
        self._lines_left -= 1
        self._characters_left -= len(self._lines[index]) + 1

    def _take_errors(self, first: int, end: int) -> None:
        for at in suspects(self._lines, first, end):
            if at in self._kept:
                continue
            around = [i for i in range(max(first, at - 1), min(end, at + 2)) if i not in self._kept]
            for group in (around, [at]):
                size = _length(self._lines[i] for i in group) + _MARK_ROOM
                if len(group) < self._lines_left and size <= self._characters_left:
                    break
            else:
                return
            # What is kept in the middle may add a mark.
            self._lines_left -= 1
            self._characters_left -= _MARK_ROOM
            for index in group:
                self._keep(index)

    def render(self) -> list[str]:
        """The lines that stay, and a mark in each gap."""
        shown: list[str] = []
        after = 0
        for index in (*sorted(self._kept), len(self._lines)):
            if gap := self._lines[after:index]:
                lines, characters = _omitted(gap)
                shown.append(_LINES_OUT.format(lines, "s" * (lines > 1), characters))
            if index < len(self._lines):
                shown.append(self._lines[index])
            after = index + 1
        return shown


def _omitted(gap: Sequence[str]) -> tuple[int, int]:
    """Lines and characters that are missing where these are left out: what earlier marks among them stand for, too."""
    marks = [found for line in gap if (found := _LINES_MARKED.fullmatch(line))]
    lines = len(gap) + sum(int(mark[1]) - 1 for mark in marks)
    return lines, _length(gap) + sum(int(mark[2]) - len(mark.group()) - 1 for mark in marks)


def suspects(lines: Sequence[str], first: int, end: int) -> Iterator[int]:
    """Lines between two indexes that look like errors, then those like warnings; each kind of line once."""
    seen: set[str] = set()
    for pattern in (_GRAVE, _LESS_GRAVE):
        for index in range(first, min(end, first + _SCANNED)):
            if pattern.search(lines[index]):
                kind = re.sub(r"\d+", "0", lines[index][:200])
                if kind not in seen:
                    seen.add(kind)
                    yield index
