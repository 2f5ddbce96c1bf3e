"""`python -m benchmarks.start [--rounds N] [--tree FOLDER] [--keep] [--json FILE]`: what it costs to start, and memory after each load.

Next to the bare proxy, and to the Spillway of another working tree if one is named. CPU until ready is that of the process
from its start until it says that it listens; its bytecode is compiled before.
"""

from __future__ import annotations

import argparse
import compileall
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import look
from benchmarks.process import cpu_seconds, python, rss_mib, running
from benchmarks.report import Values, table
from benchmarks.scenarios import Aim, Metric, Scenario, measure
from benchmarks.targets import HERE, Starter, Target, bare, spillway

LOADS = (
    Scenario("first", "short", {"count": 1, "concurrency": 1}, {"count": 1, "concurrency": 1}),
    Scenario("short", "short", {"count": 1000, "concurrency": 16}, {"count": 16, "concurrency": 4}),
    Scenario(
        "turn",
        "turns",
        {"count": 4, "messages": 200, "size": 2000, "seed": 0},
        {"count": 1, "messages": 20, "size": 200, "seed": 0},
    ),
)
METRICS = (
    Metric("start to ready, CPU ms", "start_cpu_ms", aim=Aim(500), digits=0),
    Metric("start to ready, ms", "start_ms", digits=0),
    Metric("RSS when ready, MiB", "ready_mib"),
    Metric("RSS after the first request, MiB", "first_mib"),
    Metric("RSS after 1,000 short requests, MiB", "short_mib"),
    Metric("RSS after five long turns (400 kB), MiB", "turn_mib", aim=Aim(80)),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description="Measure the start.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny loads, one round: shows that it runs")
    parser.add_argument("--tree", type=Path, help="another working tree of Spillway, for a column `before`")
    parser.add_argument("--keep", action="store_true", help="keep the figures as those of this release")
    parser.add_argument("--json", type=Path, help="write the medians to this file")
    options = parser.parse_args(argv)
    starters = _starters(options.tree)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in starters}
    with tempfile.TemporaryDirectory(prefix="spillway-bench-") as folder, _upstream(Path(folder)) as upstream:
        for number in range(1 if options.quick else options.rounds):
            for name, starter in starters.items():
                found[name].append(_measured(starter, upstream, Path(folder), number, quick=options.quick))
    rows: list[tuple[Metric, Values]] = [
        (metric, {name: median(one[metric.key] for one in rounds) for name, rounds in found.items()})
        for metric in METRICS
    ]
    print(table(rows, list(starters)))
    look(rows, keep=options.keep)
    if options.json is not None:
        numbers = {metric.name: values for metric, values in rows}
        options.json.write_text(json.dumps({"numbers": numbers}, indent=1), encoding="utf-8")


def _starters(tree: Path | None) -> dict[str, Starter]:
    starters: dict[str, Starter] = {"bare": bare}
    for name, folder in (("before", tree), ("spillway", HERE)):
        if folder is not None:
            compileall.compile_dir(folder / "proxy", quiet=2)
            starters[name] = partial(spillway, name=name, tree=folder)
    return starters


@contextmanager
def _upstream(folder: Path) -> Iterator[int]:
    with running(python("-m", "benchmarks.upstream"), folder / "upstream.log") as upstream:
        yield int(upstream.wait_for("listening on ").rsplit(" ", 1)[1])


def _measured(starter: Starter, upstream: int, folder: Path, number: int, *, quick: bool) -> dict[str, float]:
    begun = time.monotonic()
    with starter(upstream, folder) as target:
        found = {
            "start_ms": (time.monotonic() - begun) * 1e3,
            "start_cpu_ms": cpu_seconds(target.pids) * 1e3,
            "ready_mib": rss_mib(target.pids),
        }
        for load in LOADS:
            found[f"{load.name}_mib"] = _after(load, target, number, quick=quick)
    return found


def _after(load: Scenario, target: Target, number: int, *, quick: bool) -> float:
    measure(load, target, round_number=number, quick=quick)
    return rss_mib(target.pids)


if __name__ == "__main__":
    main()
