"""Shortening a text: its beginning and end stay, and lines that look like errors; each mark says how much is missing."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LEAST = 400
"""Fewest characters that are left of a text: below that, the marks would take more than the cut saves."""
LEAST_LINE, LEAST_LINES = 100, 5
# The marks and the hint count within the bounds: eleven shortened results of one turn once left no room for the newest.
MARK_ROOM = 72
"""Most characters of a mark, with its line end."""
_LINES_OUT = "[… {} line{}, {} characters left out here …]"
_CHARACTERS_OUT = "[… {} characters left out here …]"
CUT_MARK = re.compile(r"\[… (?:(\d{1,12}) lines?, )?(\d{1,12}) characters left out here …\]")
HINT = "\n[Shortened. Call the tool again if you need the rest.]"
"""Ends a result that was shortened."""
GAPS = "\n[The middles of some results up to here were left out, without a mark. Call the tool again if you need the rest.]"
"""Ends the newest result that had been read when middles of results were left out without a mark (see `without_middle`)."""
_LINE_START, _BETWEEN_WORDS = re.compile(r"(?<=\S\n)(?=\S)"), re.compile(r"(?<=\w)(?= \w)")
"""Places at which every tokenizer that was tried begins a new token, whatever comes before."""
_TRIES = 4
_AIM = 0.97
"""Share of the tokens that the first try aims at."""
_NEAR = 10
"""Lines at the end of a text in which an error counts as its outcome."""
_SCANNED = 50_000
"""Lines that are searched for errors."""
GRAVE = re.compile(r"error|exception|traceback|fail(?:ed|ure)|panic|fatal|abort|denied", re.IGNORECASE)
_PROMPT = re.compile(r"\S{0,40}[$#%>]|\d+[:|]")
"""A shell's prompt after (or instead of) the output of a command, or the number of an empty line."""
_LESS_GRAVE = re.compile(r"warn|not found|cannot|unable|timed? ?out", re.IGNORECASE)


class Bounds(NamedTuple):
    """Lines of a text, characters of each line, and of all."""

    lines: int
    line: int
    characters: int


def cut_middle(text: str, most: int, *, edge: str = "") -> str:
    """Cut the middle out of a text, so that `most` characters are left; `edge` goes before and after the mark."""
    if len(text) <= most:
        return text
    # A mark that counts all of the text is the longest that can be needed.
    mark = edge + _CHARACTERS_OUT.format(len(text) + characters_cut(text)) + edge
    room = max(0, most - len(mark))
    begin, end = room - room // 2, len(text) - room // 2
    head, gone, tail = text[:begin], text[begin:end], text[end:]
    short = f"{head}{edge}{_CHARACTERS_OUT.format(_missing(gone)[1])}{edge}{tail}"
    return short if len(short) < len(text) else text


def without_middle(text: str, head: int, tail: int) -> str:
    """Leave out the middle of a text without a mark: at most `head` characters stay of its beginning, and its end from `tail` on.

    To a backend's cache that is a deletion, since what is left has the same tokens as before: it is cut where lines begin, or between
    words. Returns the text itself if there is no such place.
    """
    line = _LINE_START.search(text, tail)
    seam = line or _BETWEEN_WORDS.search(text, tail)
    if seam is None:
        return text
    head = min(head, tail)
    ends = [*_LINE_START.finditer(text, 0, head + 1)] or ([] if line else [*_BETWEEN_WORDS.finditer(text, 0, head)])
    return text[: ends[-1].start() if ends else 0] + text[seam.start() :]


def line_start(text: str, start: int, end: int) -> int:
    """Return the last index from `start` to `end` at which `without_middle` may cut before a line; `end` if there is none."""
    return max((place.start() for place in _LINE_START.finditer(text, start, end + 1)), default=end)


def telling_line(text: str, prompts: Collection[str] = ()) -> str:
    """Return the line that best shows how something ended.

    It is an error near the end or in the first two lines, else the last line. Lines without a word are skipped. So are
    those in `prompts`, which shells print after any output, unless they look like errors.
    """
    stripped = map(str.strip, text.removesuffix(GAPS).removesuffix(HINT).split("\n"))
    lines = [line for line in stripped if re.search(r"\w", line) and not _PROMPT.fullmatch(line)]
    lines = [line for line in lines if line not in prompts or GRAVE.search(line)]
    return next(filter(GRAVE.search, (*lines[: -_NEAR - 1 : -1], *lines[:2])), lines[-1] if lines else "")


def characters_cut(text: str) -> int:
    """Count the characters that were left out of a text according to its marks."""
    return sum(int(mark[2]) for mark in CUT_MARK.finditer(text))


def shorten(text: str, bounds: Bounds) -> str:
    """Bring a text within its bounds, marks and line ends included, so that doing it again changes nothing."""
    lines = [cut_middle(line, bounds.line) for line in text.split("\n")]
    if _exceeds(lines, bounds):
        # A line may take a quarter of the room, or more if there are so few lines that all have room for it.
        level = water_level([len(line) + 1 for line in lines], bounds.characters - MARK_ROOM)
        longest = max(LEAST_LINE, min(bounds.line, max(bounds.characters // 4, int(level) - 1)))
        lines = [cut_middle(line, longest) for line in lines]
        if _exceeds(lines, bounds):
            lines = list(_with_marks(lines, _chosen(lines, bounds)))
    return "\n".join(lines)


def fit(full: T, size: int, tokens: float, *, make: Callable[[int], T], count: Callable[[T], float]) -> tuple[T, float]:
    """Shorten `full` to at most `tokens` and return it with its tokens, trying up to four times.

    Tokens are not spread evenly over characters, so a first guess may miss. `make` shortens `full`, which has `size`
    characters, to a number of characters, as far as that is possible.
    """
    done, total = full, count(full)
    used, lose = total, size * (1 - _AIM * tokens / max(1.0, total))
    for _ in range(_TRIES):
        if used <= tokens:
            break
        done = make(max(0, int(size - lose)))
        used = count(done)
        lose *= 1.01 + 1.2 * max(0.0, used - tokens) / max(1.0, total - used)
    return done, used


def water_level(sizes: Sequence[float], room: float) -> float:
    """Find the size to which the larger ones have to come down so that all together take at most `room`."""
    spare = room
    for at, size in enumerate(ordered := sorted(sizes)):
        level = spare / (len(ordered) - at)
        if size > level:
            return max(0.0, level)
        spare -= size
    return max(ordered, default=0.0)


def _exceeds(lines: Sequence[str], bounds: Bounds) -> bool:
    return len(lines) > bounds.lines or sum(map(len, lines)) + len(lines) > bounds.characters + 1


def _chosen(lines: Sequence[str], bounds: Bounds) -> set[int]:
    """Choose lines: two fifths of the room for the beginning, two for the end, the rest for errors, then for more of the end."""
    chosen: set[int] = set()
    # There will be at least one mark.
    used_lines, used = 1, MARK_ROOM
    backwards = range(len(lines))[::-1]
    for indexes, share in ((range(len(lines)), 0.4), (backwards, 0.8), (_suspects(lines), 1.0), (backwards, 1.0)):
        for index in indexes:
            if index in chosen:
                continue
            # A line alone in the middle splits a gap in two, which takes another mark.
            marks = 0 < index < len(lines) - 1 and {index - 1, index + 1}.isdisjoint(chosen)
            size = len(lines[index]) + 1 + MARK_ROOM * marks
            if used_lines + 1 + marks > share * bounds.lines or used + size > share * bounds.characters:
                break
            used_lines, used = used_lines + 1 + marks, used + size
            chosen.add(index)
    return chosen


def _suspects(lines: Sequence[str]) -> Iterator[int]:
    """Yield lines that look like errors, then those like warnings, each with its neighbours, and each kind of line once."""
    seen: set[str] = set()
    for pattern in (GRAVE, _LESS_GRAVE):
        for index, line in enumerate(lines[:_SCANNED]):
            if pattern.search(line) and (kind := re.sub(r"\d+", "0", line[:200])) not in seen:
                seen.add(kind)
                yield from (index, *range(max(0, index - 1), min(len(lines), index + 2)))


def _with_marks(lines: Sequence[str], chosen: set[int]) -> Iterator[str]:
    """Yield the chosen lines, and a mark in each gap."""
    after = 0
    for index in (*sorted(chosen), len(lines)):
        if gap := lines[after:index]:
            missing, characters = _missing("\n".join((*gap, "")))
            yield _LINES_OUT.format(missing, "s" * (missing > 1), characters)
        yield from lines[index : index + 1]
        after = index + 1


def _missing(gone: str) -> tuple[int, int]:
    """Count the lines and characters of a text that is left out, with those missing by earlier marks in it."""
    marks = list(CUT_MARK.finditer(gone))
    lines = gone.count("\n") + sum(int(mark[1] or 1) - 1 for mark in marks)
    # The line end of a mark for lines is the mark's own.
    return lines, len(gone) + sum(int(mark[2]) - len(mark.group()) - (mark[1] is not None) for mark in marks)
