"""Progress of an agent's work in a part of a history, read from its tool calls: steps done, files changed, items open."""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from proxy.compaction.results import Result, results_of, shell_prompts
from proxy.compaction.shorten import telling_line
from proxy.compaction.source import Source
from proxy.core.history.marks import CHANGED, DONE, OPEN_ITEMS, headed_list, is_summary, section
from proxy.core.history.sentences import found_in, newest_within
from proxy.core.piece import arguments_of
from proxy.core.request import Message

TASK = "Task: "
"""Prefix of a task's line."""
_CALL, _OUTCOME, _PATH, _NEAR = 80, 100, 200, 4
"""Characters shown of a call, of its outcome and of a path; and lines at either end of a result that are searched for a path."""
_OPEN_SHARE, _CHANGED, _TASKS = 0.35, 0.2, 0.5
"""Shares of the room for open items and for changed files; and share of the rest for tasks, each with its last step."""
_VERBS = "write|edit|create|replace|insert|patch|update|append|rename|move|delete|remove"
_WRITES = re.compile(rf"(?:^|_)(?:multi)?(?:{_VERBS})(?:_|$)", re.IGNORECASE)
_WRITES_BY_COMMAND = re.compile(
    rf"(?:^|[;&|]\s*)(?:sudo )?(?:{_VERBS}|str_replace|tee|mv|cp|rm|touch|sed -i)\b|(?<![\d&=-])>>?\s*(?![\s&]|/dev/)(?P<file>[^\s;|&<>]{{1,200}})"
)
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.{1,200})$", re.MULTILINE)
_FILE = re.compile(r"\.[A-Za-z]\w{0,7}$")
_NAMES_FILE = re.compile(r"path|file", re.IGNORECASE)
_COMMANDS = ("command", "cmd")
_OVER = frozenset({"x", "completed", "complete", "done", "cancelled", "canceled", "finished"})
_TITLES = ("content", "step", "title", "text", "description", "task")
"""Fields in which clients' to-do tools put the text of an item."""
_BEFORE_QUOTED, _AFTER_QUOTED = " … ", "Call the tool again if you need it.]"
"""Text before and after the last line of a result that is quoted in the note in its place."""


def progress(messages: Sequence[Message], source: Source, *, limit: int) -> str:
    """Return sections about the work in at most `limit` characters, headings not counted; empty without tool calls."""
    # A task that stays in the prompt has its line as well; otherwise its steps read as part of the task before.
    results = results_of(messages)
    blocks = [message for message in messages if is_summary(message)]
    steps, changed, remaining = (
        [line for block in blocks for line in section(block, title)] for title in (DONE, CHANGED, OPEN_ITEMS)
    )
    for result in results:
        todo = todos(result)
        remaining = open_items(todo) if todo else remaining
        for path in _changes(result):
            others = (each for each in changed if not f"/{each}".endswith(f"/{path}"))
            changed = [*(each for each in others if not path.endswith(f"/{each}")), path]
    remaining = _first(remaining, int(limit * _OPEN_SHARE))
    changed = newest_within(changed, limit=int(limit * _CHANGED))
    room = limit - sum(len(line) + 3 for line in (*remaining, *changed))
    steps += [line for line in _steps(results, source) if line not in steps or not line.startswith(TASK)]
    done = _newest(steps, room)
    sections = ((DONE, done), (CHANGED, changed), (OPEN_ITEMS, remaining))
    return "".join(f"\n{headed_list(title, lines)}" for title, lines in sections if lines)


def _first(lines: Sequence[str], room: int) -> list[str]:
    """Return the first lines that fit into `room` characters."""
    ends = accumulate(len(line) + 3 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= room]


def _newest(lines: Sequence[str], room: int) -> list[str]:
    """Choose the newest tasks, each with its last step, for half of the room, then the newest other steps; in their order."""
    following = [*lines[1:], TASK]
    ends = [n for n, line in enumerate(lines) if line.startswith(TASK) or following[n].startswith(TASK)]
    chosen: set[int] = set()
    for numbers, share in ((ends, _TASKS), (range(len(lines)), 1.0)):
        for n in reversed([n for n in numbers if n not in chosen]):
            used = sum(len(lines[each]) + 3 for each in (*chosen, n))
            if used > room * share:
                break
            chosen.add(n)
    return [lines[n] for n in sorted(chosen)]


def _steps(results: Sequence[Result], source: Source) -> list[str]:
    """Return a line for each call and its outcome, under the task that it served; of equal calls only the last is listed."""
    prompts = shell_prompts(results)
    lines: dict[str, str] = {}
    waiting = list(source.tasks)
    for result in results:
        while waiting and waiting[0][0] <= result.index:
            task = waiting.pop(0)[1]
            lines[task] = f"{TASK}{task}"
        if not todos(result):
            called = f"{result.name}: {_shown(result)}"
            _, cut, end = result.text.partition(_BEFORE_QUOTED)
            quoted = result.is_note and cut and end.endswith(_AFTER_QUOTED)
            line = telling_line(end.removesuffix(_AFTER_QUOTED) if quoted else result.text, prompts)
            outcome = " ".join(line.split())[:_OUTCOME]
            lines.pop(called, None)
            lines[called] = f"{called} → {outcome}" if outcome else called
    return list(lines.values())


def _values(result: Result) -> dict[str, str]:
    """Return the arguments of a call that are strings."""
    return {name: value for name, value in arguments_of(result.arguments or "").items() if isinstance(value, str)}


def _shown(result: Result) -> str:
    """Abbreviate a call: the first line of its first argument, and the other arguments of one line."""
    values = [value.strip() for value in _values(result).values()] or [result.arguments or ""]
    shown = ", ".join(v.split("\n")[0] for n, v in enumerate(values) if not n or "\n" not in v)
    return shown if len(shown) <= _CALL else f"{shown[:_CALL]}…"


def _changes(result: Result) -> list[str]:
    """Return the files that a call writes to: all that a patch names, else the first named by argument, command or result."""
    values = _values(result)
    if patched := _PATCHED.findall(result.arguments.replace("\\n", "\n") if result.arguments else ""):
        return patched
    command = next((values[name] for name in _COMMANDS if name in values), None)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", result.name)
    writes = _WRITES_BY_COMMAND.search(command) if command else _WRITES.search(name)
    if writes is None:
        return []
    named = [value for name, value in values.items() if _NAMES_FILE.search(name)]
    if command and writes["file"]:
        named.append(writes["file"])
    lines = result.text.split("\n")
    for text in (command[writes.start() :].split("\n")[0] if command else "", *lines[:_NEAR], *lines[-_NEAR:]):
        named += (name for name in found_in(text) if _FILE.search(name))
    return [path for path in named[:1] if len(path) <= _PATH and "\n" not in path]


def todos(result: Result) -> list[tuple[str, str]]:
    """Return status and text of each item of a to-do list that a call sets; empty if it sets none."""
    fields = arguments_of(result.arguments or "") if '"status"' in (result.arguments or "") else {}
    items = [item for value in fields.values() if isinstance(value, list) for item in value]
    tasks = [item for item in items if isinstance(item, dict) and item.get("status")]
    return [(str(item["status"]), str(item[name])) for item in tasks if (name := next(filter(item.get, _TITLES), ""))]


def open_items(items: Iterable[tuple[str, str]]) -> list[str]:
    """Return the texts of those items whose status does not say that they are over."""
    return [" ".join(title.split()) for status, title in items if status.lower() not in _OVER]
