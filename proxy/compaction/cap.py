"""Cap oversize tool results as far as needed: beginning, end and what looks like an error stay, and each cut says its size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import water_level
from proxy.compaction.policy import BYTES_PER_TOKEN, PruneLimits
from proxy.compaction.results import Result, by_message, results_of, unread_from, with_texts
from proxy.core.history.turns import is_result
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


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a text is shortened to: its lines, the characters of each, and of all."""

    lines: int
    line: int
    characters: int


def cap_results(reduction: Reduction) -> Reduction:
    """Cap oversize results between `floor` and `tail` until the budget is kept; never what the model has not read yet."""
    messages, excess = list(reduction.messages), reduction.total - reduction.budget
    for index, results in reduction.old(results_of(messages)).items():
        if excess <= 0:
            break
        room = reduction.costs[index] - excess
        short = {r: text for r in results if (text := _capped(r, reduction, room)) != r.text}
        if short:
            messages[index] = with_texts(messages[index], short)
            excess -= reduction.costs[index] - sum(reduction.cost([messages[index]]))
    return reduction.with_messages(messages)


def cap_unread(reduction: Reduction) -> Reduction:
    """Shorten what the model has not read yet, its largest results first, down to the goal; `unread` tokens stay.

    The last thing to give up: the model has just asked for it.
    """
    messages = list(reduction.messages)
    start = unread_from(messages)
    unread = by_message([result for result in results_of(messages) if result.index >= start])
    sizes = [reduction.costs[index] for index in unread]
    wanted = max(reduction.unread, reduction.goal - (reduction.total - sum(sizes)))
    if sum(sizes) <= wanted:
        return reduction
    level = water_level(sizes, wanted)
    for index, results in unread.items():
        messages[index] = with_texts(messages[index], {r: _filled(r, reduction, level / len(results)) for r in results})
    return reduction.with_messages(messages)


def within_limits(messages: Sequence[Message], limits: PruneLimits) -> Sequence[Message]:
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


def _limited(result: Result, limits: PruneLimits) -> str:
    text = result.text
    if len(text) <= _LEAST or result.is_note:
        return text
    bounds, room = _bounds(result, limits), limits.result_tokens * BYTES_PER_TOKEN
    for _ in range(_TRIES):
        size = len(text.encode(errors="surrogatepass"))
        characters = bounds.characters if size <= room else max(_LEAST, len(text) * room // size)
        if (short := _shortened(text, bounds, characters)) == text:
            break
        text = short
    return text


def _capped(result: Result, reduction: Reduction, room: float) -> str:
    """The text in `room` tokens, or if that is less within all limits; the text itself if capping would not save tokens."""
    text = result.text
    if len(text) <= _LEAST:
        return text
    limits = reduction.limits
    bounds = _bounds(result, limits)
    short = _shortened(text, bounds, bounds.characters)
    if short == text and reduction.costs[result.index] <= limits.result_tokens:
        return text
    least = _within_tokens(short, reduction, limits.result_tokens, bounds)
    if room > (tokens := _tokens(least, reduction)):
        short = _filled(result, reduction, room)
        least = short if _tokens(short, reduction) <= room else least
        tokens = _tokens(least, reduction)
    return least if tokens < _tokens(text, reduction) else text


def _filled(result: Result, reduction: Reduction, room: float) -> str:
    """Cut the text to so many tokens, whatever its lines are like."""
    text = result.text
    bounds = _Bounds(max(_LEAST_LINES, text.count("\n") + 1), max(_LEAST_LINE, len(text)), max(_LEAST, len(text)))
    return _within_tokens(text, reduction, room, bounds)


def _tokens(text: str, reduction: Reduction) -> float:
    return sum(reduction.cost([{"role": "tool", "content": text}]))


def _within_tokens(text: str, reduction: Reduction, most: float, bounds: _Bounds) -> str:
    """Shortened until it has so few tokens, as far as that goes."""
    short, room = text, len(text)
    for last in (*[False] * _TRIES, True):
        counted = _tokens(short, reduction)
        if counted <= most or len(short) <= _LEAST:
            break
        # Tokens are not spread evenly over the characters, so a guess may miss.
        room = _LEAST if last else max(_LEAST, int(min(room, len(short)) * 0.95 * most / counted))
        short = _shortened(text, bounds, room)
    return short


def _bounds(result: Result, limits: PruneLimits) -> _Bounds:
    words = {word.lower() for word in _WORDS.findall(result.name)}
    command = bool(words & _COMMANDS)
    listing = (bool(words & _LISTINGS) or {"list", "files"} <= words) and not words & _SEARCHES
    if command and _LISTING_COMMAND.match(result.arguments or ""):
        listing = True
    # One line more than entries, for the mark.
    lines = min(limits.lines, limits.entries + 1) if listing else limits.lines
    characters = limits.output_characters if command else len(result.text)
    return _Bounds(max(_LEAST_LINES, lines), max(_LEAST_LINE, limits.line_characters), max(_LEAST, characters))


def _shortened(text: str, bounds: _Bounds, characters: int) -> str:
    """The text within its bounds, and so many characters, marks and line ends included, so that doing it again changes nothing."""
    bounds = replace(bounds, characters=min(bounds.characters, characters))
    lines = [_cut(line, bounds.line) for line in text.split("\n")]
    if _exceeds(lines, bounds):
        # A line takes a quarter of the room at most, unless there are so few that all have room for more.
        level = water_level([len(line) + 1 for line in lines], bounds.characters - _MARK_ROOM)
        longest = max(_LEAST_LINE, min(bounds.line, max(bounds.characters // 4, int(level) - 1)))
        lines = [_cut(line, longest) for line in lines]
        if _exceeds(lines, bounds):
            lines = list(_with_marks(lines, _Selection(lines, bounds).chosen))
    return "\n".join(lines)


def _exceeds(lines: Sequence[str], bounds: _Bounds) -> bool:
    return len(lines) > bounds.lines or _length(lines) > bounds.characters + 1


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    # The mark for all of it is the longest that can be needed.
    keep = most - len(_CHARACTERS_OUT.format(len(line)))
    return line[: keep - keep // 2] + _CHARACTERS_OUT.format(len(line) - keep) + line[len(line) - keep // 2 :]


def _length(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


class _Selection:
    """Choice of lines: two fifths of the room for the beginning, as much for the end, the rest for errors."""

    def __init__(self, lines: Sequence[str], bounds: _Bounds) -> None:
        self.chosen: set[int] = set()
        self._lines = lines
        # There is at least one mark.
        self._lines_left = bounds.lines - 1
        self._characters_left = bounds.characters - _MARK_ROOM
        share = self._lines_left * 2 // 5, self._characters_left * 2 // 5
        first = self._take(range(len(lines)), *share)
        end = len(lines) - self._take(range(len(lines) - 1, first - 1, -1), *share)
        self._take_errors(first, end)
        self._take(range(end - 1, first - 1, -1), self._lines_left, self._characters_left)

    def _take(self, indexes: Iterable[int], lines: int, characters: int) -> int:
        """Choose lines in that order until one does not fit; how many were passed."""
        passed = 0
        for index in indexes:
            if index not in self.chosen:
                size = len(self._lines[index]) + 1
                if lines < 1 or characters < size:
                    break
                lines, characters = lines - 1, characters - size
                self._choose([index], 0)
            passed += 1
        return passed

    def _choose(self, indexes: Sequence[int], marks: int) -> None:
        self.chosen.update(indexes)
        self._lines_left -= len(indexes) + marks
        self._characters_left -= _length(self._lines[index] for index in indexes) + marks * _MARK_ROOM

    def _take_errors(self, first: int, end: int) -> None:
        """Choose lines that look like errors with their neighbours, or alone where there is no room for these."""
        for at in _suspects(self._lines, first, end):
            if at in self.chosen:
                continue
            around = [i for i in range(max(first, at - 1), min(end, at + 2)) if i not in self.chosen]
            for group in (around, [at]):
                size = _length(self._lines[i] for i in group) + _MARK_ROOM
                if len(group) < self._lines_left and size <= self._characters_left:
                    self._choose(group, 1)  # what is chosen in the middle may add a mark
                    break
            else:
                return


def _with_marks(lines: Sequence[str], chosen: set[int]) -> Iterator[str]:
    """The chosen lines, and a mark in each gap."""
    after = 0
    for index in (*sorted(chosen), len(lines)):
        if gap := lines[after:index]:
            missing, characters = _omitted(gap)
            yield _LINES_OUT.format(missing, "s" * (missing > 1), characters)
        yield from lines[index : index + 1]
        after = index + 1


def _omitted(gap: Sequence[str]) -> tuple[int, int]:
    """Lines and characters that are missing where these are left out: what earlier marks among them stand for, too."""
    marks = [found for line in gap if (found := _LINES_MARKED.fullmatch(line))]
    lines = len(gap) + sum(int(mark[1]) - 1 for mark in marks)
    return lines, _length(gap) + sum(int(mark[2]) - len(mark.group()) - 1 for mark in marks)


def _suspects(lines: Sequence[str], first: int, end: int) -> Iterator[int]:
    """Lines between two indexes that look like errors, then those like warnings; each kind of line once."""
    seen: set[str] = set()
    for pattern in (_GRAVE, _LESS_GRAVE):
        for index in range(first, min(end, first + _SCANNED)):
            if pattern.search(lines[index]):
                kind = re.sub(r"\d+", "0", lines[index][:200])
                if kind not in seen:
                    seen.add(kind)
                    yield index
