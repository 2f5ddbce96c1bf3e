"""`python -m benchmarks.survival [--quick] [--windows …] [--kinds …] [--scenarios …] [--turns N] [--jobs N]`.

Long scripted sessions in small windows, through the real proxy and over real sockets, against every kind of
backend. The fakes count and enforce their windows as the real ones do, so that what is measured here is what a
client and a backend would see. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.survival_report import Result, misses, table
from benchmarks.survival_scripts import SCENARIOS, Scenario
from benchmarks.survival_session import Cell, play
from benchmarks.survival_tally import Tally
from benchmarks.tables import mapped
from tests.fakes import FAKES

WINDOWS = (2048, 4096, 8192, 32768)
QUICK_WINDOWS = (2048, 8192)
TURNS = 200
QUICK_TURNS = 40
"""Enough for two or three compactions of the sessions with longer turns."""
NAMES = {scenario.name: scenario for scenario in SCENARIOS}


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the sessions that the command line, or these arguments, choose, and print the table."""
    options = _options(arguments)
    cells = _cells(options)
    trace = (lambda line: print(line, flush=True)) if options.trace else None
    results: list[Result] = []
    jobs = 1 if trace else options.jobs
    for cell, tally in zip(cells, mapped(jobs, partial(play, trace=trace), cells), strict=True):
        results.append((cell, tally))
        print(f"\r{len(results)} of {len(cells)} sessions", end="", file=sys.stderr, flush=True)
        if len(results) == len(cells) or cells[len(results)].window != cell.window:
            print(file=sys.stderr)
            print(table([r for r in results if r[0].window == cell.window], each=options.each), flush=True)
    print(f"\n{misses(results)}")
    if options.json is not None:
        options.json.write_text(json.dumps(_plain(results), indent=1), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.survival", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two windows, few turns")
    parser.add_argument("--windows", nargs="+", type=_window, help="tokens, or 2k, 4k …")
    parser.add_argument("--kinds", nargs="+", choices=list(FAKES), default=list(FAKES))
    parser.add_argument("--scenarios", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--turns", type=int, help=f"requests per session; default: {TURNS}")
    parser.add_argument("--jobs", type=int, default=1, help="sessions at a time")
    parser.add_argument("--each", action="store_true", help="a row for each kind of backend")
    parser.add_argument("--trace", action="store_true", help="a line for each turn")
    parser.add_argument("--json", type=Path, help="write every figure of every session to this file")
    return parser.parse_args(arguments)


def _window(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def _cells(options: argparse.Namespace) -> list[Cell]:
    windows: Sequence[int] = options.windows or (QUICK_WINDOWS if options.quick else WINDOWS)
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    scenarios: list[Scenario] = [NAMES[name] for name in options.scenarios]
    return [Cell(s, kind, window, turns) for window in windows for s in scenarios for kind in options.kinds]


def _plain(results: Sequence[Result]) -> list[dict[str, object]]:
    return [_row(cell, tally) for cell, tally in results]


def _row(cell: Cell, tally: Tally) -> dict[str, object]:
    where = {"scenario": cell.scenario.name, "window": cell.window, "backend": cell.kind}
    # `asdict` counts the pairs of a counter (Python before 3.12).
    return {**where, **asdict(tally), "actions": dict(tally.actions)}


if __name__ == "__main__":
    main()
