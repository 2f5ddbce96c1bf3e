"""How conversations and requests look in a terminal: rich texts and tables, without colour and width they are plain."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from proxy.wire.jsontext import JsonObject

_PARTS = (
    ("system", "s", "blue"),
    ("tools", "t", "cyan"),
    ("summary", "=", "magenta"),
    ("recalled", "~", "yellow"),
    ("tail", "#", "green"),
    ("answer", ">", "bright_green"),
    ("room", ".", "bright_black"),
)
LEGEND = " ".join(f"{letter} {part}" for part, letter, _ in _PARTS)
_WHAT = {
    "kept": "",
    "shortened": "yellow",
    "masked": "yellow",
    "summarised": "magenta",
    "recalled": "cyan",
    "mended": "blue",
    "removed": "red",
    "added": "green",
}
_LONG = 200
"""Characters of a message that are shown in one line."""


def clean(text: object, most: int = _LONG) -> str:
    """A text in one line; what could drive the terminal is shown, not sent."""
    line = " ".join(str(text).split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def bar(row: JsonObject, width: int) -> Text:
    """The window as it is filled, in so many characters; a part that is there has one at least."""
    parts, window = row.get("bar") or {}, row.get("window") or 0
    drawn, left = Text(), width
    if not parts or window <= 0:
        return Text("?" * width if row.get("window") is None else "", style="bright_black")
    for name, letter, style in _PARTS:
        tokens = max(0, parts.get(name) or 0)
        share = left if name == "room" else min(left, max(round(width * tokens / window), 1 if tokens else 0))
        drawn.append(letter * share, style=style)
        left -= share
    return drawn


def conversations(rows: Sequence[JsonObject], *, bars: int) -> Table:
    """A table of conversations, the newest first, with bars of so many characters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("STATE", "MODEL", "WINDOW", "FILL", "TOKENS", "TOK/S", "TURNS", "COMPACTED", "CONVERSATION"):
        right = name in {"FILL", "TOKENS", "TOK/S", "TURNS", "COMPACTED"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "CONVERSATION")
    for row in rows:
        speed, window = row.get("tokens_per_second"), row.get("window")
        used = (row.get("prompt") or 0) + (row.get("answer") or 0)
        title = f"{row['id']} {clean(row.get('title') or '', 80)}".strip()
        table.add_row(
            Text(str(row.get("state")), style="" if row.get("state") == "idle" else "bold green"),
            clean(f"{row.get('backend')}/{row.get('model')}", 40),
            bar(row, bars),
            _percent(row.get("fill")),
            f"{used:,} of {window:,}" if window else f"{used:,}",
            "" if speed is None else f"{speed:.1f}",
            str(row.get("turns", "")),
            str(row.get("compactions", "")),
            _rest(title),
        )
    return table


def request_line(outcome: JsonObject) -> Text:
    """One request in one line."""
    status, error = outcome.get("status"), outcome.get("error")
    line = Text(f"{_clock(outcome.get('at'))} ")
    style = "green" if error is None and isinstance(status, int) and status < 400 else "red"
    line.append(f"{'running' if outcome.get('running') else status} ", style=style)
    line.append(f"{outcome.get('action')}", style="magenta" if outcome.get("compactions") else "")
    line.append(f" {clean(outcome.get('backend'))}/{clean(outcome.get('model'))}")
    line.append(_fill(outcome))
    for count, text in (
        (outcome.get("recalled"), "{} recalled"),
        (outcome.get("pauses"), "{} pauses"),
        (outcome.get("left_out"), "{:,} tokens left out"),
    ):
        if count:
            line.append(f", {text.format(count)}")
    if outcome.get("completion_tokens"):
        line.append(f", {outcome['completion_tokens']:,} tokens answered")
    line.append(f", first byte {_seconds(outcome.get('first_byte'))} of {_seconds(outcome.get('seconds'))}")
    if error is not None:
        line.append(f" {clean(error)}", style="red")
    line.append(f" {clean(outcome.get('id'))}", style="bright_black")
    return line


def timeline(turn: JsonObject) -> Table:
    """What happened to a request, one line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for fits in (True, True, False):
        table.add_column(no_wrap=fits)
    for event in turn.get("events", ()):
        fields = {
            name: value
            for name, value in event.items()
            if name not in ("at", "event") and value not in ("", None)
        }
        told = ", ".join(f"{name} {clean(_rounded(value), 60)}" for name, value in fields.items())
        table.add_row(
            Text(f"+{event['at']:.2f} s", style="bright_black"), Text(str(event["event"])), Text(told)
        )
    return table


def difference(diff: JsonObject) -> Table:
    """What the client sent and what was forwarded; what was kept as it was is counted, not shown."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("WHAT", "ROLE", "SENT", "FORWARDED", "TOKENS", "TEXT"):
        table.add_column(name, justify="right" if name == "TOKENS" else "left", no_wrap=name != "TEXT")
    for row in diff.get("rows", ()):
        if row.get("what") == "kept":
            continue
        style, after = _WHAT.get(row.get("what"), ""), row.get("after")
        text = row.get("before") if after is None else after
        forwarded = row.get("forwarded")
        table.add_row(
            Text(clean(row.get("what")), style=style),
            clean(row.get("role")),
            _places(row.get("sent") or ()),
            "" if forwarded is None else str(forwarded),
            f"{row.get('tokens') or 0:,}",
            _rest(clean(text or "")),
        )
    return table


def counted(diff: JsonObject) -> str:
    """The difference in one sentence."""
    if diff.get("same"):
        return "It was forwarded as it came."
    tokens = diff.get("tokens") or {}
    counts = ", ".join(f"{number} {what}" for what, number in (diff.get("counts") or {}).items() if number)
    return (
        f"{tokens.get('sent') or 0:,} tokens were sent, {tokens.get('forwarded') or 0:,} forwarded: {counts}."
    )


def explained(told: JsonObject) -> Table:
    """What would be done to a request."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    window = told.get("window")
    of = f" of {window:,} ({_percent(told.get('fill'))})" if window else ", window unknown"
    table.add_row("model", clean(f"{told.get('backend')}/{told.get('model')}"))
    table.add_row(
        "prompt", f"{told.get('prompt_tokens') or 0:,} tokens{of}, counted by {told.get('counted_by')}"
    )
    table.add_row("action", " · ".join(filter(None, (told.get("action"), told.get("note")))))
    if checkpoint := told.get("checkpoint"):
        table.add_row(
            "checkpoint",
            f"{checkpoint.get('covered_messages')} messages stand as {checkpoint.get('replaced_by_messages')}: "
            f"{checkpoint.get('tokens_before'):,} → {checkpoint.get('tokens_after'):,} tokens",
        )
    if recalled := told.get("recalled"):
        table.add_row(
            "recalled", f"{len(recalled.get('passages') or ())} passages, {recalled.get('tokens'):,} tokens"
        )
    messages = told.get("messages") or ()
    table.add_row("forwarded", f"{len(messages)} messages")
    for index, message in enumerate(messages):
        table.add_row(f"  {index} {clean(message.get('role'))}", _rest(clean(message.get("content") or "")))
    return table


def _rest(text: str) -> Text:
    """What gets the room that is left in a line, and ends with it."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _rounded(value: object) -> object:
    return round(value, 2) if isinstance(value, float) else value


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


def _clock(at: float | None) -> str:
    return "" if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def _places(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
