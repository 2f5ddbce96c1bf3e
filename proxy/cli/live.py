"""`spillway top`, `tail`, `show`, `export`, `replay` and `explain`: reports of a running Spillway (`docs/api-live.md`).

Output is coloured in a terminal, plain if piped, and JSON with `--json`.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import httpx
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from proxy.cli import CommandError, say
from proxy.cli.launch import url_of
from proxy.cli.saved import conversations_in
from proxy.core.errors import plural, printable
from proxy.core.jsontext import JsonObject, dumps
from proxy.core.settings import Settings
from proxy.core.sse import FrameSplitter, frames

_TIMEOUT = httpx.Timeout(60.0, read=None)
"""Seconds; unlimited for reads, since the live feed is silent for ten at a time and explaining a long history may take a while."""
_PIPED = 240
"""Characters of a line if there is no terminal to fit into."""
_BAR = 30
"""Most characters of the bar that shows a window."""
_PARTS = (
    ("system", "s", "blue"),
    ("tools", "t", "cyan"),
    ("summary", "=", "magenta"),
    ("recalled", "~", "yellow"),
    ("tail", "#", "green"),
    ("answer", ">", "bright_green"),
    ("room", ".", "bright_black"),
)
_COLUMNS = {
    **dict.fromkeys(("STATE", "MODEL", "WINDOW"), 0),
    "TOKENS>": 120,
    **dict.fromkeys(("TOK/S>", "TURNS>", "COMPACTED>"), 160),
    "CONVERSATION": 0,
}
"""Columns of the table of conversations, each with the least terminal width at which it is shown: a narrower one needs the room
for titles. `>` marks numbers.
"""
_EVENT = re.compile(rb"event: (\w+)\ndata: (.*)")


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Run one of these commands.

    Raises:
        CommandError: Spillway does not answer, or refuses the request.
    """
    headers = {"accept-encoding": "identity", "content-type": "application/json"}
    for key in (*settings.admin_keys, *settings.api_keys)[:1]:
        headers["authorization"] = f"Bearer {key}"
    url = (args.url or url_of(settings)).rstrip("/").removesuffix("/v1")
    commands = {"top": _top, "tail": _tail, "show": _show, "export": _export, "replay": _replay, "explain": _explain}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=False) as client:
            commands[args.command](client, args)
    except KeyboardInterrupt:  # the usual way to end `tail`
        pass
    return 0


def _ask(client: httpx.Client, path: str, body: bytes | None = None) -> JsonObject:
    """Return the JSON served at a path, or the answer to a posted JSON body."""
    with _opened(client, path, body) as answer:
        document: JsonObject = json.loads(answer.read())
        return document


def _find(client: httpx.Client, path: str) -> JsonObject | None:
    """Return the JSON served at a path, or None if it is refused: the viewer may not see content, or it is not stored."""
    try:
        return _ask(client, path)
    except CommandError:
        return None


def _events(client: httpx.Client) -> Iterator[tuple[str, Any]]:
    """Yield names and data of live events as they come.

    Raises:
        CommandError: Spillway has ended, which is the only end of the feed.
    """
    splitter = FrameSplitter()
    with _opened(client, "/spillway/live") as feed:
        for piece in feed.iter_raw():
            for frame in frames(splitter.feed(piece)):
                if (found := _EVENT.match(frame)) is not None:
                    yield found[1].decode(), json.loads(found[2])
    raise CommandError(f"the Spillway at {client.base_url} has ended")


@contextmanager
def _opened(client: httpx.Client, path: str, body: bytes | None = None) -> Iterator[httpx.Response]:
    url = f"{client.base_url}"
    try:
        with client.stream("GET" if body is None else "POST", path, content=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise CommandError(_reason(url, answer))
            yield answer
    except httpx.HTTPError as error:
        name = type(error).__name__
        raise CommandError(
            f"no Spillway answers at {url} ({name}): start it with `spillway serve`, or say where it is with --url"
        ) from None


def _reason(url: str, answer: httpx.Response) -> str:
    """Describe an error answer, which may come from another server than Spillway."""
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = ""
    if not message or "x-request-id" not in answer.headers:
        return f"what answers at {url} with {answer.status_code} is no Spillway, or one that is older"
    if answer.status_code == 401:
        return f"{message} Set SPILLWAY_ADMIN_KEYS or SPILLWAY_API_KEYS to those that the Spillway at {url} has."
    return message


def _top(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print the current conversations, those with the newest requests first."""
    listed = _ask(client, "/spillway/conversations")
    _print(args, listed, [_conversations(listed["conversations"], _console().width)])


def _tail(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print the newest requests, one line each, then each request as it ends."""
    last = args.last

    def print_all(outcomes: Sequence[JsonObject]) -> None:
        for outcome in reversed(outcomes):
            _print(args, outcome, [_request_line(outcome)], indent=None)
        sys.stdout.flush()

    if args.no_follow:
        query = f"limit={max(1, last)}&running=false"
        print_all(_ask(client, f"/spillway/outcomes?{query}")["outcomes"][:last])
        return
    for name, data in _events(client):
        if name == "snapshot":
            print_all([outcome for outcome in data["outcomes"] if not outcome.get("running")][:last])
        elif name == "outcome":
            print_all([data])


def _show(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print one request with its timeline and changes, or one conversation with its requests and summary."""
    if args.id.startswith("c_"):
        path = f"/spillway/conversations/{args.id}"
        row, summary = _ask(client, path), _find(client, f"{path}/summary")
        table = _conversations([row], _console().width)
        parts: list[RenderableType] = [table, "", *map(_request_line, row["timeline"])]
        for block in (summary or {}).get("blocks") or ():
            lines = str(block.get("text") or "").split("\n")
            parts.append(f"\nsummary, {block.get('by')}, {plural(block.get('tokens') or 0, 'token')}:")
            parts += [_clean(line, 10_000) for line in lines]
        _print(args, {"conversation": row, "summary": summary}, parts)
        return
    path = f"/spillway/requests/{args.id}"
    turn, diff = _ask(client, path), _find(client, f"{path}/diff")
    parts = [_request_line(turn), _timeline(turn)]
    if diff is not None:
        counts = ", ".join(f"{number} {change}" for change, number in diff["counts"].items())
        tokens = diff["tokens"]
        parts.append(
            f"\n{tokens['sent']:,} tokens were sent, {tokens['forwarded']:,} forwarded; of the messages {counts}."
        )
    _print(args, {"request": turn, "diff": diff}, parts)


def _replay(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print for each saved conversation from which turn on it would be shortened, and would not fit without that."""
    rows: list[dict[str, Any]] = []
    for title, requests in conversations_in(_file(args).decode("utf-8", "replace")):
        named = {} if args.model is None else {"model": args.model}
        turns = [_ask(client, "/spillway/explain", dumps({**each, **named})) for each in requests]
        window = max((each["window"] or 0 for each in turns), default=0)
        due = [number for number, each in enumerate(turns, 1) if each["action"] == "due"]
        full = [number for number, each in enumerate(turns, 1) if 0 < (each["window"] or 0) <= each["prompt_tokens"]]
        tokens = max((each["prompt_tokens"] for each in turns), default=0)
        rows.append(
            {
                "title": title,
                "turns": len(turns),
                "largest": tokens,
                "window": window or None,
                "due": due[0] if due else None,
                "full": full[0] if full else None,
            }
        )
    names = ("TURNS>", "LARGEST>", "SHORTENED FROM TURN>", "TOO LARGE FROM TURN>", "TITLE")
    cells = (
        (r["turns"], _of_window(r["largest"], r["window"]), r["due"] or "", r["full"] or "", r["title"]) for r in rows
    )
    _print(args, rows, [_table(names, cells)])


def _export(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print a conversation as Markdown."""
    with _opened(client, f"/spillway/conversations/{args.id}/export") as answer:
        say(answer.read().decode().removesuffix("\n"))


def _explain(client: httpx.Client, args: argparse.Namespace) -> None:
    """Print, as JSON, what would be done to a saved request for chat completions."""
    _print(args, _ask(client, "/spillway/explain", _file(args)), [])


def _file(args: argparse.Namespace) -> bytes:
    """Read the file of the command; `-` is standard input."""
    try:
        return sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    except OSError as error:
        raise CommandError(f"{args.file} cannot be read: {error.strerror}") from None


# Drawing


class _PlainConsole(Console):
    """Console that prints texts as they are, without markup."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console() -> Console:
    console = _PlainConsole()
    return console if console.is_terminal else _PlainConsole(_PIPED)


def _print(args: argparse.Namespace, document: Any, parts: Sequence[RenderableType], *, indent: int | None = 2) -> None:
    if not parts or args.json:
        print(json.dumps(document, ensure_ascii=False, indent=indent))  # noqa: T201 - a command line tool prints
        return
    console = _console()
    for part in parts:
        console.print(part, soft_wrap=not isinstance(part, Table))


def _clean(text: object, most: int = 200) -> str:
    """Return a text as one line of at most `most` characters, with control characters escaped."""
    return printable(" ".join(str(text).split())[:most])


def _table(names: Sequence[str], rows: Iterable[Iterable[object]], *, expand: bool = False) -> Table:
    """Draw a table; columns whose names end with `>` are aligned right. With `expand`, the last column takes the remaining room."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(map(str.strip, names)), expand=expand)
    for name in names:
        side: Literal["left", "right"] = "right" if name.endswith(">") else "left"
        table.add_column(name.rstrip(">"), justify=side, no_wrap=True, overflow="ellipsis")
    table.columns[-1].ratio = 1  # only matters if the table is expanded
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _clean(cell) for cell in row))
    return table


def _bar(row: JsonObject, width: int) -> Text:
    """Draw the parts of a window as a bar of `width` characters; a part with tokens has at least one, if there is room."""
    parts, window = row.get("bar") or {}, row.get("window") or 0
    drawn, free = Text(), width
    if not parts or window <= 0:
        return Text("?" * width if row.get("window") is None else "", style="bright_black")
    for name, letter, style in _PARTS:
        tokens = max(0, parts.get(name) or 0)
        share = free if name == "room" else min(free, max(round(width * tokens / window), 1 if tokens else 0))
        drawn.append(letter * share, style=style)
        free -= share
    return drawn


def _conversations(rows: Sequence[JsonObject], width: int) -> Table:
    """Draw conversations as a table for a terminal of `width` columns."""
    shown = [width >= least for least in _COLUMNS.values()]
    cells = (
        (
            Text(row["state"], style="" if row["state"] == "idle" else "bold green"),
            _clean(f"{row['model']}@{row['backend']}", min(40, width // 5)),
            _bar(row, min(_BAR, width // 6)),
            _of_window((row["prompt"] or 0) + (row["answer"] or 0), row["window"]),
            row["tokens_per_second"] or "",
            row["turns"],
            row["compactions"],
            f"{row['id']} {_clean(row['title'] or '', 80)}",
        )
        for row in rows
    )
    return _table([*compress(_COLUMNS, shown)], (compress(each, shown) for each in cells), expand=width < _PIPED)


def _request_line(outcome: JsonObject) -> Text:
    """Draw one request in one line."""
    status, error, after = outcome["status"], outcome["error"], outcome["tokens_after"]
    line = Text(time.strftime("%H:%M:%S ", time.localtime(outcome["at"])))
    style = "green" if error is None and status < 400 else "red"
    line.append(f"{'running' if outcome['running'] else status} ", style=style)
    line.append(outcome["action"], style="magenta" if outcome["action"] not in ("forwarded", "passed") else "")
    line.append("".join(f" {_clean(outcome['backend'])}/{_clean(outcome['model'])}" if outcome["model"] else ""))
    if after is not None:
        line.append(f" {_of_window(after, outcome['window'])}{'' if outcome['window'] else ' tokens'}")
    answered = outcome["completion_tokens"]
    line.append(f", {plural(answered, 'token', ' answered', form=',')}" if answered else "")
    first = "" if outcome["first_byte"] is None else f"first byte {outcome['first_byte']:.1f} s of "
    line.append(f", {first}{outcome['seconds']:.1f} s. {_clean(outcome['sentence'], 500)}")
    line.append("" if error is None else f" {_clean(error)}", style="red")
    return line.append(f" {_clean(outcome['id'])}", style="bright_black")


def _timeline(turn: JsonObject) -> Table:
    """Draw the events of a request, one line each."""
    rows = []
    for event in turn["events"]:
        fields = (
            f"{name} {_clean(round(value, 2) if isinstance(value, float) else value, 60)}"
            for name, value in event.items()
            if name not in ("at", "event") and value not in ("", None)
        )
        rows.append((Text(f"+{event['at']:.2f} s", style="bright_black"), event["event"], ", ".join(fields)))
    return _table(("", "", " "), rows)


def _of_window(tokens: int, window: int | None) -> str:
    return f"{tokens:,} of {window:,} ({tokens / window:.0%})" if window else f"{tokens:,}"
