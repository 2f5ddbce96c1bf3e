"""`python -m benchmarks.memory [--quick] [--windows …] [--languages …] [--jobs N]`.

What a conversation that outgrew its window still knows: recorded chats are played turn by turn through the real proxy to
a scripted backend with a real window, whose summaries are the first words of each line; at the end the annotated questions
are asked, and the prompts that reach the backend are searched for the evidence. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial

from benchmarks.memory_cpu import cost
from benchmarks.memory_data import Dialogue, dialogues
from benchmarks.memory_keeper import COMMAND
from benchmarks.memory_play import Found, Played, play, play_kept
from benchmarks.tables import mapped, percent, table

SINGLE, LONG = (2048,), (2048, 4096, 8192)
"""Windows in which chats of single users, and the long ones, are played; single ones fit into larger windows."""
AIMS = {("long", 4096): "evidence >= 65, prefix >= 75", ("long", 8192): "evidence >= 75, prefix >= 85"}
AIMS |= {("single", 2048): "answers >= 90"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the chats that the command line, or these arguments, choose, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one long chat of each language, one window")
    parser.add_argument("--windows", nargs="+", type=int, help="tokens")
    parser.add_argument("--languages", nargs="+", choices=("en", "cn"), default=("en", "cn"))
    parser.add_argument("--jobs", type=int, default=1, help="chats at a time")
    options = parser.parse_args(arguments)
    rows = [_HEAD]
    for language in options.languages:
        single, long = dialogues(language)
        for name, chats, windows in (("single", single, SINGLE), ("long", long, LONG)):
            for window in windows:
                if options.quick and (name, window) != ("long", 4096):
                    continue
                if not options.windows or window in options.windows:
                    rows += _rows(f"{language} {name}", chats[:1] if options.quick else chats, window, options.jobs)
                    print(end=".", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(rows))
    print(cost())
    if not COMMAND.is_file():
        print("ctxkeeper is left out: it is not installed, which `make bench` does")
    for (name, window), aim in AIMS.items():
        print(f"aim for {name} chats in {window} tokens: {aim}")


_HEAD = [
    "chats",
    "window",
    "recall",
    "evidence %",
    "answers %",
    "prefix kept %",
    "turns recalled %",
    "summ./100",
    "wrong",
]


def _rows(name: str, chats: Sequence[Dialogue], window: int, jobs: int) -> list[list[str]]:
    """Two lines for Spillway, without recall and with it, and two for what it is compared with, in the tokens of the latter."""
    off, on = (_total(mapped(jobs, partial(play, window=window, recall=recall), chats)) for recall in ("off", "auto"))
    rows = [
        [name, str(window), recall, *_shares(sum_.spillway), *_chat(sum_)]
        for recall, sum_ in (("off", off), ("auto", on))
    ]
    others = [("newest turns", on.newest), ("plain BM25", on.bm25)]
    if COMMAND.is_file():
        for label, searches in (("ctxkeeper", False), ("ctxkeeper, searching", True)):
            kept = _total(mapped(jobs, partial(play_kept, window=window, searches=searches), chats))
            others.append((label, kept.spillway))
    return rows + [[name, str(window), other, *_shares(found), "-", "-", "-", "-"] for other, found in others]


def _total(played: Iterable[Played]) -> Played:
    whole = Played()
    for each in played:
        for name in (field.name for field in fields(Played)):
            mine, theirs = getattr(whole, name), getattr(each, name)
            setattr(whole, name, _sum(mine, theirs) if isinstance(mine, Found) else mine + theirs)
    return whole


def _sum(one: Found, other: Found) -> Found:
    names = [field.name for field in fields(Found)]
    return Found(**{name: getattr(one, name) + getattr(other, name) for name in names})


def _shares(found: Found) -> list[str]:
    return [percent(found.evidence, found.of_evidence), percent(found.words, found.of_words)]


def _chat(played: Played) -> list[str]:
    return [
        percent(played.kept, played.shown),
        percent(played.recalled, played.turns),
        percent(played.summaries, played.turns),
        str(played.wrong),
    ]


if __name__ == "__main__":
    main()
