"""`python -m benchmarks.memory [--quick] [--kinds …] [--windows …] [--languages …] [--held-out] [--jobs N]`.

What a conversation that outgrew its window still knows: chats are played turn by turn through the real proxy to a scripted
backend with a real window, whose summaries are the first words of each line; after each of the last ten turns some of the
questions are asked, and the prompts that reach the backend are searched for the evidence. The kinds: recorded `dialogues`
with annotated questions; `chats` with long answers, in which facts are said in passing, and changed; `lists` that a tool
prints. `--held-out` takes other chats and lists than rules were made with. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial

from benchmarks.memory_cpu import cost
from benchmarks.memory_data import Dialogue, dialogues
from benchmarks.memory_keeper import COMMAND
from benchmarks.memory_kinds import chats, lists
from benchmarks.memory_play import Found, Played, play, play_kept
from benchmarks.tables import mapped, percent, table

KINDS = ("dialogues", "chats", "lists")
AIMS = """aims: dialogues 68 % of the evidence in 4096, 78 % in 8192 (Chinese 80); chats' facts and changed values 45, 65, and
never only the old value; lists' items and keys 85; prefix kept in long dialogues 75, 85"""
_ASKED = [
    *("chats", "window", "asked", "whose prompt", "questions"),
    *("evidence %", "answers %", "only the old %", "recalled tokens"),
]
_TURNS = [
    *("chats", "window", "recall", "turns"),
    *("recalled %", "tokens/turn", "prefix kept %", "compactions/100", "summ./100", "wrong"),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the chats that the command line, or these arguments, choose, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one chat of each kind, shorter ones, one window")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--windows", nargs="+", type=int, help="tokens")
    parser.add_argument("--languages", nargs="+", choices=("en", "cn"), default=("en", "cn"), help="of dialogues")
    parser.add_argument("--held-out", action="store_true", help="chats and lists for checking")
    parser.add_argument("--only", choices=("auto", "off"), help="play with recall or without it, not both")
    parser.add_argument("--jobs", type=int, default=1, help="chats at a time")
    options = parser.parse_args(arguments)
    asked, turns = [_ASKED], [_TURNS]
    for name, played_chats, windows in _chosen(options):
        for window in windows:
            if not options.windows or window in options.windows:
                for recall in (options.only,) if options.only else ("off", "auto"):
                    played = _total(mapped(options.jobs, partial(play, window=window, recall=recall), played_chats))
                    turns.append([name, str(window), recall, *_turns(played)])
                    asked += [[name, str(window), *row] for row in _asked(played, recall)]
                if COMMAND.is_file() and name not in ("chats", "lists"):
                    asked += _kept(name, played_chats, window, options.jobs)
                print(end=".", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(asked), table(turns), cost(), AIMS, sep="\n\n")
    if not COMMAND.is_file():
        print("ctxkeeper is left out: it is not installed, which `make bench` does")


def _chosen(options: argparse.Namespace) -> Iterator[tuple[str, Sequence[Dialogue], Sequence[int]]]:
    """The chats with their names and windows; single users' fit into windows larger than 2048."""
    quick, held = options.quick, options.held_out
    if "dialogues" in options.kinds:
        for language in options.languages:
            single, long = dialogues(language)
            if not quick:
                yield f"{language} single", single, (2048,)
            yield f"{language} long", long[:1] if quick else long, (4096,) if quick else (2048, 4096, 8192)
    if "chats" in options.kinds:
        yield (
            "chats",
            chats(30_000 if quick else 120_000, 1 if quick else 3, held=held),
            (4096,) if quick else (4096, 8192),
        )
    if "lists" in options.kinds:
        yield "lists", lists(10_000 if quick else 40_000, held=held), (4096,) if quick else (4096, 8192)


def _kept(name: str, played_chats: Sequence[Dialogue], window: int, jobs: int) -> list[list[str]]:
    """Rows for ctxkeeper."""
    rows: list[list[str]] = []
    for label, searches in (("ctxkeeper", False), ("ctxkeeper, searching", True)):
        kept = _total(mapped(jobs, partial(play_kept, window=window, searches=searches), played_chats))
        rows += [
            [name, str(window), kind, label, *_shares(found)]
            for (who, kind), found in kept.found.items()
            if who == "Spillway"
        ]
    return rows


def _total(played: Iterable[Played]) -> Played:
    total = Played()
    for each in played:
        for key, found in each.found.items():
            _add(total.found.setdefault(key, Found()), found)
        _add(total, each)
    return total


def _add(total: Found | Played, more: Found | Played) -> None:
    for name in (field.name for field in fields(more) if field.name != "found"):
        setattr(total, name, getattr(total, name) + getattr(more, name))


def _asked(played: Played, recall: str) -> list[list[str]]:
    """A row for each kind of question and whose prompt it is."""
    names = {"Spillway": "Spillway" if recall == "auto" else f"Spillway, recall {recall}"}
    shown = [(kind, who, found) for (who, kind), found in played.found.items() if recall == "auto" or who == "Spillway"]
    return [
        [kind, names.get(who, who), *_shares(found)] for kind, who, found in sorted(shown, key=lambda each: each[0])
    ]


def _shares(found: Found) -> list[str]:
    return [
        str(found.asked),
        percent(found.evidence, found.of_evidence),
        percent(found.words, found.of_words),
        percent(found.only_old, found.of_changed),
        str(found.tokens // max(1, found.asked)),
    ]


def _turns(played: Played) -> list[str]:
    return [
        str(played.turns),
        percent(played.recalled, played.turns),
        str(played.tokens // max(1, played.turns)),
        percent(played.kept, played.shown),
        percent(played.compacted, played.turns),
        percent(played.summaries, played.turns),
        str(played.wrong),
    ]


if __name__ == "__main__":
    main()
