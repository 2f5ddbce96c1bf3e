"""`spillway top`, `tail`, `show` and `explain`: what the Spillway that runs reports (`docs/api-live.md`).

Coloured in a terminal, plain where the output is piped, JSON where that is asked for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from proxy.core import sse
from proxy.core.jsontext import JsonObject
from proxy.core.settings import Settings

_TIMEOUT = httpx.Timeout(60.0, read=None)
"""Seconds; the live feed is silent for ten at a time, and explaining a long history may take a while."""
_PIPED = 240
"""Characters of a line where there is no terminal to fit into."""
_BAR = 30
"""Characters of a window."""
_PARTS = (
    ("system", "s", "blue"),
    ("tools", "t", "cyan"),
    ("summary", "=", "magenta"),
    ("recalled", "~", "yellow"),
    ("tail", "#", "green"),
    ("answer", ">", "bright_green"),
    ("room", ".", "bright_black"),
)
_LEGEND = " ".join(f"{letter} {part}" for part, letter, _ in _PARTS)


class LiveError(Exception):
    """Spillway could not be asked, or refused; the text says why, and what to do."""


class LiveClient:
    """The Spillway that runs at a URL; the first admin key goes with each request, else the first key."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        keys = (*settings.admin_keys, *settings.api_keys)
        self._headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}

    def ask(self, path: str, body: bytes | None = None) -> JsonObject:
        """Return the JSON that is served there, or the answer to a JSON body that is posted.

        Raises:
            LiveError: no answer, or an error.
        """
        headers = {**self._headers, "content-type": "application/json"}
        method = "GET" if body is None else "POST"
        try:
            answer = httpx.request(
                method, self.url + path, headers=headers, content=body, timeout=_TIMEOUT, trust_env=False
            )
        except httpx.HTTPError as error:
            raise LiveError(_unreachable(self.url, error)) from None
        if answer.status_code != 200:
            raise LiveError(_reason(self.url, answer))
        document: JsonObject = answer.json()
        return document

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield names and data of live events as they come, without an end of its own.

        Raises:
            LiveError: no answer, or Spillway went away.
        """
        splitter, headers = sse.FrameSplitter(), {**self._headers, "accept-encoding": "identity"}
        try:
            with httpx.stream(
                "GET", f"{self.url}/spillway/live", headers=headers, timeout=_TIMEOUT, trust_env=False
            ) as feed:
                if feed.status_code != 200:
                    feed.read()
                    raise LiveError(_reason(self.url, feed))
                for piece in feed.iter_raw():
                    for frame in sse.frames(splitter.feed(piece)):
                        if (data := sse.data_of(frame)) is not None:
                            lines = (line[6:] for line in frame.split(b"\n") if line.startswith(b"event:"))
                            yield next(lines, b"message").strip().decode(), json.loads(data)
        except httpx.HTTPError as error:
            raise LiveError(_unreachable(self.url, error)) from None
        raise LiveError(f"the Spillway at {self.url} has ended")


def top(client: LiveClient, *, as_json: bool) -> None:
    """Show conversations while they run, until the terminal says stop; once, where the output is piped."""
    console = _console()
    if as_json or not console.is_terminal:
        listed = client.ask("/spillway/conversations")
        _print(listed, conversations(listed["conversations"]), as_json=as_json)
        return
    rows: dict[str, JsonObject] = {}
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for name, data in client.events():
            rows = _updated(rows, name, data)
            live.update(_screen(list(rows.values()), console), refresh=True)


def tail(client: LiveClient, *, last: int, follow: bool, as_json: bool) -> None:
    """Print the newest requests, a line each, and then each that ends."""

    def print_all(outcomes: Sequence[JsonObject]) -> None:
        for outcome in reversed(outcomes):
            _print(outcome, request_line(outcome), as_json=as_json, indent=None)

    if not follow:
        if last:
            print_all(client.ask(f"/spillway/outcomes?limit={max(1, last)}&running=false")["outcomes"])
        return
    for name, data in client.events():
        if name == "snapshot":
            print_all([outcome for outcome in data["outcomes"] if not outcome.get("running")][:last])
            last = 0  # a later one holds what was missed
        elif name == "outcome":
            print_all([data])
        sys.stdout.flush()


def show(client: LiveClient, name: str, *, as_json: bool) -> None:
    """Print one request with its timeline and what was done to it, or one conversation with its requests and summary."""
    if name.startswith("c_"):
        row = client.ask(f"/spillway/conversations/{name}")
        summary = _optional(client, f"/spillway/conversations/{name}/summary")
        parts: list[RenderableType] = [conversations([row]), ""]
        parts += [request_line(turn) for turn in row.get("timeline", ())]
        for block in (summary or {}).get("blocks") or ():
            parts.append(Text(f"\nsummary, {block.get('by')}, {block.get('tokens')} tokens:"))
            parts += [Text(clean(line, 10_000)) for line in str(block.get("text") or "").split("\n")]
        _print({"conversation": row, "summary": summary}, *parts, as_json=as_json)
        return
    turn = client.ask(f"/spillway/requests/{name}")
    diff = _optional(client, f"/spillway/requests/{name}/diff")
    parts = [request_line(turn), timeline(turn), *(difference(diff) if diff is not None else ())]
    _print({"request": turn, "diff": diff}, *parts, as_json=as_json)


def explain(client: LiveClient, file: str, *, as_json: bool) -> None:
    """Print what would be done to a saved request for chat completions; `-` reads it from standard input."""
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise LiveError(f"{file} cannot be read: {error.strerror}") from None
    explained = client.ask("/spillway/explain", body)
    _print(explained, explanation(explained), as_json=as_json)


class _PlainConsole(Console):
    """Shows texts as they are."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console() -> Console:
    console = _PlainConsole()
    return console if console.is_terminal else _PlainConsole(_PIPED)


def _print(document: Any, *parts: RenderableType, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=indent))  # noqa: T201 - a command line tool prints
        return
    console = _console()
    for part in parts:
        console.print(part, soft_wrap=not isinstance(part, Table))


def _updated(rows: dict[str, JsonObject], name: str, data: Any) -> dict[str, JsonObject]:
    """Return the rows after an event of the live feed, the newest first."""
    match name:
        case "snapshot":
            return {row["id"]: row for row in data["conversations"]}
        case "conversation":
            return {data["id"]: data, **{key: row for key, row in rows.items() if key != data["id"]}}
        case "gone":
            return {key: row for key, row in rows.items() if key != data["id"]}
        case _:
            return rows


def _screen(rows: Sequence[JsonObject], console: Console) -> Group:
    """Draw as many conversations as there is room for."""
    visible = rows[: max(1, console.height - 4)]
    more = f", {len(rows) - len(visible)} more below" if len(rows) > len(visible) else ""
    head = Text(f"{len(rows)} conversations{more}    {_LEGEND}    ctrl-c ends", style="bright_black")
    return Group(head, conversations(visible, width=max(10, min(_BAR, console.width // 5))))


def clean(text: object, most: int = 200) -> str:
    """Return a text in one line; what could drive the terminal is shown, not sent."""
    line = " ".join(str(text).split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def bar(row: JsonObject, width: int) -> Text:
    """Draw the window as it is filled, in so many characters; a part that is there has one at least."""
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


def conversations(rows: Sequence[JsonObject], *, width: int = _BAR) -> Table:
    """Draw a table of conversations, with bars of so many characters."""
    table = _table("STATE", "MODEL", "WINDOW", "FILL>", "TOKENS>", "TOK/S>", "TURNS>", "COMPACTED>", "CONVERSATION")
    for row in rows:
        speed, window = row.get("tokens_per_second"), row.get("window")
        used = (row.get("prompt") or 0) + (row.get("answer") or 0)
        table.add_row(
            Text(str(row.get("state")), style="" if row.get("state") == "idle" else "bold green"),
            clean(f"{row.get('backend')}/{row.get('model')}", 40),
            bar(row, width),
            _percent(row.get("fill")),
            f"{used:,} of {window:,}" if window else f"{used:,}",
            "" if speed is None else f"{speed:.1f}",
            str(row.get("turns", "")),
            str(row.get("compactions", "")),
            _ellipsis(f"{row['id']} {clean(row.get('title') or '', 80)}".strip()),
        )
    return table


def request_line(outcome: JsonObject) -> Text:
    """Draw one request in one line."""
    status, error, at = outcome.get("status"), outcome.get("error"), outcome.get("at")
    line = Text("" if at is None else time.strftime("%H:%M:%S ", time.localtime(at)))
    style = "green" if error is None and isinstance(status, int) and status < 400 else "red"
    line.append(f"{'running' if outcome.get('running') else status} ", style=style)
    line.append(f"{outcome.get('action')}", style="magenta" if outcome.get("compactions") else "")
    line.append(f" {clean(outcome.get('backend'))}/{clean(outcome.get('model'))}{_fill(outcome)}")
    for name, text in (
        ("recalled", "{:,} recalled"),
        ("pauses", "{:,} pauses"),
        ("left_out", "{:,} tokens left out"),
        ("completion_tokens", "{:,} tokens answered"),
    ):
        if count := outcome.get(name):
            line.append(f", {text.format(count)}")
    line.append(f", first byte {_seconds(outcome.get('first_byte'))} of {_seconds(outcome.get('seconds'))}")
    if error is not None:
        line.append(f" {clean(error)}", style="red")
    line.append(f" {clean(outcome.get('id'))}", style="bright_black")
    return line


def timeline(turn: JsonObject) -> Table:
    """Draw what happened to a request, one line each."""
    table = _table("", "", " ")
    for event in turn.get("events", ()):
        fields = {name: value for name, value in event.items() if name not in ("at", "event")}
        text = ", ".join(
            f"{name} {clean(round(value, 2) if isinstance(value, float) else value, 60)}"
            for name, value in fields.items()
            if value not in ("", None)
        )
        table.add_row(Text(f"+{event['at']:.2f} s", style="bright_black"), Text(str(event["event"])), Text(text))
    return table


def difference(diff: JsonObject) -> Iterator[RenderableType]:
    """Draw what the client sent and what was forwarded; messages that are the same are counted, not shown."""
    if diff.get("same"):
        yield Text("\nIt was forwarded as it came.")
        return
    tokens, counts = diff.get("tokens") or {}, (diff.get("counts") or {}).items()
    numbers = ", ".join(f"{number} {change}" for change, number in counts if number)
    yield Text(
        f"\n{tokens.get('sent') or 0:,} tokens were sent, {tokens.get('forwarded') or 0:,} forwarded: {numbers}."
    )
    table = _table("WHAT", "ROLE", "SENT", "FORWARDED", "TOKENS>", "TEXT")
    for row in diff.get("rows", ()):
        if row.get("what") == "kept":
            continue
        sent, forwarded, after = row.get("sent") or [], row.get("forwarded"), row.get("after")
        table.add_row(
            clean(row.get("what")),
            clean(row.get("role")),
            f"{sent[0]}-{sent[-1]}" if len(sent) > 1 else "".join(map(str, sent)),
            "" if forwarded is None else str(forwarded),
            f"{row.get('tokens') or 0:,}",
            _ellipsis(clean((row.get("before") if after is None else after) or "")),
        )
    yield table


def explanation(explained: JsonObject) -> Table:
    """Draw what would be done to a request."""
    table = _table("", " ")
    window = explained.get("window")
    of = f" of {window:,} ({_percent(explained.get('fill'))})" if window else ", window unknown"
    tokens = f"{explained.get('prompt_tokens') or 0:,} tokens{of}, counted by {explained.get('counted_by')}"
    table.add_row("model", clean(f"{explained.get('backend')}/{explained.get('model')}"))
    table.add_row("prompt", tokens)
    table.add_row("action", " · ".join(filter(None, (explained.get("action"), explained.get("note")))))
    if checkpoint := explained.get("checkpoint"):
        covers = f"{checkpoint.get('covered_messages')} messages stand as {checkpoint.get('replaced_by_messages')}"
        change = f"{checkpoint.get('tokens_before'):,} → {checkpoint.get('tokens_after'):,} tokens"
        table.add_row("checkpoint", f"{covers}: {change}")
    if recalled := explained.get("recalled"):
        passages = len(recalled.get("passages") or ())
        table.add_row("recalled", f"{passages} passages, {recalled.get('tokens'):,} tokens")
    messages = explained.get("messages") or ()
    table.add_row("forwarded", f"{len(messages)} messages")
    for index, message in enumerate(messages):
        table.add_row(f"  {index} {clean(message.get('role'))}", _ellipsis(clean(message.get("content") or "")))
    return table


def _table(*names: str) -> Table:
    """Begin a table; a name that ends with `>` is that of numbers, the last column takes what room there is."""
    heads = any(map(str.strip, names))
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=heads)
    for name in names:
        table.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left", no_wrap=name != names[-1])
    return table


def _ellipsis(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _fill(outcome: JsonObject) -> str:
    before, after, window = (outcome.get(name) for name in ("tokens_before", "tokens_after", "window"))
    if after is None:
        return ""
    change = f"{before:,} → {after:,}" if before is not None and before != after else f"{after:,}"
    return f" {change}{'' if window is None else f' of {window:,} ({_percent(after / window)})'}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f} s"


def _optional(client: LiveClient, path: str) -> JsonObject | None:
    """Return what is served there, if anything is: not everybody may see content, and not all of it is stored."""
    try:
        return client.ask(path)
    except LiveError:
        return None


def _unreachable(url: str, error: httpx.HTTPError) -> str:
    return f"no Spillway answers at {url} ({type(error).__name__}): start it with `spillway serve`, or say where it is with --url"


def _reason(url: str, answer: httpx.Response) -> str:
    """Describe an error; whatever else answers there has no words for it."""
    try:
        _ = answer.headers["x-request-id"]
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"what answers at {url} with {answer.status_code} is no Spillway, or one that is older"
    if answer.status_code == 401:
        return f"{message} Set SPILLWAY_ADMIN_KEYS or SPILLWAY_API_KEYS to those that the Spillway at {url} has."
    return message
