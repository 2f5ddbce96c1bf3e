"""`spillway top`, `tail`, `show` and `explain`: pretty in a terminal, plain where they are piped, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from typing_extensions import override

from proxy.commands.terminal.asking import NotTold, Running
from proxy.commands.terminal.drawing import (
    LEGEND,
    clean,
    conversations,
    counted,
    difference,
    explained,
    request_line,
    timeline,
)
from proxy.wire.jsontext import JsonObject

_PIPED = 240
"""Characters of a line where there is no terminal to fit into."""
_BAR = 30


def top(running: Running, *, as_json: bool) -> None:
    """Show conversations while they run, until the terminal says stop; once, where it is piped."""
    console = _console()
    if as_json or not console.is_terminal:
        told = running.get("/spillway/conversations")
        rows = told["conversations"]
        if as_json:
            _print_json(told)
        else:
            console.print(conversations(rows, bars=_BAR))
        return
    rows_by_id: dict[str, JsonObject] = {}
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for name, data in running.live("/spillway/live"):
            _take(rows_by_id, name, data)
            live.update(_screen(list(rows_by_id.values()), console), refresh=True)


def tail(running: Running, *, last: int, follow: bool, as_json: bool) -> None:
    """Print the newest requests, a line each, and then each that ends."""
    console = _console()

    def said(outcome: JsonObject) -> None:
        if as_json:
            _print_json(outcome, lines=True)
        else:
            console.print(request_line(outcome), soft_wrap=True)

    if not follow:
        told = (
            running.get(f"/spillway/outcomes?limit={max(1, last)}&running=false")
            if last
            else {"outcomes": []}
        )
        for outcome in reversed(told["outcomes"]):
            said(outcome)
        return
    for name, data in running.live("/spillway/live"):
        if name == "snapshot":
            ended = [outcome for outcome in data["outcomes"] if not outcome.get("running")]
            for outcome in reversed(ended[:last]):
                said(outcome)
            last = 0  # one that comes later says what was missed by it
        elif name == "outcome":
            said(data)
        sys.stdout.flush()


def show(running: Running, what: str, *, as_json: bool) -> None:
    """Print one request with its timeline and what was done to it, or one conversation with its requests and summary."""
    console = _console()
    if what.startswith("c_"):
        row = running.get(f"/spillway/conversations/{what}")
        summary = _if_told(running, f"/spillway/conversations/{what}/summary")
        if as_json:
            _print_json({"conversation": row, "summary": summary})
        else:
            _show_conversation(console, row, summary)
        return
    turn = running.get(f"/spillway/requests/{what}")
    diff = _if_told(running, f"/spillway/requests/{what}/diff")
    if as_json:
        _print_json({"request": turn, "diff": diff})
        return
    console.print(request_line(turn), soft_wrap=True)
    console.print(timeline(turn))
    if diff is not None:
        console.print(Text(f"\n{counted(diff)}"), soft_wrap=True)
        console.print(difference(diff))


def explain(running: Running, file: str, *, as_json: bool) -> None:
    """Print what would be done to a saved request for chat completions; `-` reads it from standard input."""
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise NotTold(f"{file} cannot be read: {error.strerror}") from None
    told = running.post("/spillway/explain", body)
    if as_json:
        _print_json(told)
    else:
        _console().print(explained(told))


class _Plain(Console):
    """Shows texts as they are."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console() -> Console:
    console = _Plain()
    return console if console.is_terminal else _Plain(_PIPED)


def _take(rows: dict[str, JsonObject], name: str, data: Any) -> None:
    """Bring the rows up to date with an event of the live feed."""
    match name:
        case "snapshot":
            rows.clear()
            rows.update({row["id"]: row for row in data["conversations"]})
        case "conversation":
            newest = {data["id"]: data, **{key: row for key, row in rows.items() if key != data["id"]}}
            rows.clear()
            rows.update(newest)
        case "progress":
            for each in data:
                if each["id"] in rows:
                    rows[each["id"]] = {
                        **rows[each["id"]],
                        **{key: each[key] for key in each if key != "request"},
                    }
        case "gone":
            rows.pop(data["id"], None)
        case _:
            pass


def _screen(rows: Sequence[JsonObject], console: Console) -> Group:
    """As many conversations as there is room for."""
    shown = rows[: max(1, console.height - 4)]
    more = f", {len(rows) - len(shown)} more below" if len(rows) > len(shown) else ""
    head = Text(f"{len(rows)} conversations{more}    {LEGEND}    ctrl-c ends", style="bright_black")
    return Group(head, conversations(shown, bars=max(10, min(_BAR, console.width // 5))))


def _show_conversation(console: Console, row: JsonObject, summary: JsonObject | None) -> None:
    console.print(conversations([row], bars=_BAR))
    console.print()
    for turn in row.get("timeline", ()):
        console.print(request_line(turn), soft_wrap=True)
    for block in (summary or {}).get("blocks") or ():
        console.print(Text(f"\nsummary, {block.get('by')}, {block.get('tokens')} tokens:"), soft_wrap=True)
        for line in str(block.get("text") or "").split("\n"):
            console.print(Text(clean(line, 10_000)), soft_wrap=True)


def _if_told(running: Running, path: str) -> JsonObject | None:
    """What is told there, if anything is: not everybody may see content, and not all of it is kept."""
    try:
        return running.get(path)
    except NotTold:
        return None


def _print_json(told: Any, *, lines: bool = False) -> None:
    print(json.dumps(told, ensure_ascii=False, indent=None if lines else 2))  # noqa: T201 - a command line tool prints
