"""`python -m benchmarks [--quick] [--only NAME] [--targets NAMES] [--rounds N] [--keep] [--json FILE] [--survival]`.

Everything runs side by side: all targets are up at once in front of one upstream, and each round measures each of them.
The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import survival
from benchmarks.figures import look
from benchmarks.process import rss_mib
from benchmarks.report import Values, table
from benchmarks.scenarios import SCENARIOS, Metric, Scenario, measure, value
from benchmarks.targets import TARGETS, Target, missing, started

RSS = Metric("RSS after the run, MiB", "rss_mib")
Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Scenario, then target, then one result per round."""


def main() -> None:
    options = _options()
    scenarios = [s for s in SCENARIOS if not options.only or s.name in options.only]
    rounds = options.rounds or (1 if options.quick else 5)
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as folder,
        started(_names(options), Path(folder)) as targets,
    ):
        results = _run(scenarios, targets, rounds=rounds, quick=options.quick)
        memory = {target.name: rss_mib(target.pids) if target.pids else None for target in targets}
    rows = _rows(scenarios, results, memory)
    print(
        f"\n{platform.machine()}, Python {platform.python_version()}, {rounds} rounds, medians; see benchmarks/scenarios.py\n"
    )
    print(table(rows, [target.name for target in targets]))
    look(rows, keep=options.keep)
    if options.json is not None:
        numbers = {metric.name: values for metric, values in rows}
        options.json.write_text(json.dumps({"numbers": numbers, "rounds": results}, indent=1), encoding="utf-8")
    if options.survival:
        print()
        survival.main(["--quick"] if options.quick else [])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Spillway side by side.")
    parser.add_argument("--quick", action="store_true", help="tiny counts, one round: shows that it runs")
    parser.add_argument(
        "--only", action="append", choices=[s.name for s in SCENARIOS], help="only this one; repeatable"
    )
    parser.add_argument("--targets", type=lambda text: text.split(","), help=f"of {','.join(TARGETS)}; default: all")
    parser.add_argument(
        "--survival", action="store_true", help="also the long sessions in small windows (benchmarks.survival)"
    )
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 with --quick")
    parser.add_argument("--keep", action="store_true", help="keep the figures as those of this release")
    parser.add_argument("--json", type=Path, help="write every number of every round to this file")
    return parser.parse_args()


def _names(options: argparse.Namespace) -> list[str]:
    names = list(options.targets or TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        sys.exit(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    for name in names:
        if why := missing(name):
            print(f"{name} is left out: {why}")
    return [name for name in names if not missing(name)]


def _run(scenarios: list[Scenario], targets: list[Target], *, rounds: int, quick: bool) -> Results:
    results: Results = {scenario.name: {target.name: [] for target in targets} for scenario in scenarios}
    first = 0 if quick else -1  # round -1 warms up: probes, caches, code that is compiled on first use
    for number in range(first, rounds):
        for scenario in scenarios:
            for target in targets:
                if scenario.own and not target.resumes:
                    continue
                try:
                    result = measure(scenario, target, round_number=number, quick=quick or number < 0)
                except RuntimeError as error:
                    print(f"\nleft out of the medians: {error}", file=sys.stderr)
                    continue
                if number >= 0:
                    results[scenario.name][target.name].append(result)
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def _rows(scenarios: list[Scenario], results: Results, memory: dict[str, float | None]) -> list[tuple[Metric, Values]]:
    rows: list[tuple[Metric, Values]] = []
    for scenario in scenarios:
        for metric in scenario.metrics:
            values = {
                name: None if metric.of_proxy and name == "direct" else value(metric, rounds)
                for name, rounds in results[scenario.name].items()
            }
            rows.append((metric, values))
            if metric.added:
                rows.append((_added(metric), _over_direct(values)))
    return [*rows, (RSS, memory)]


def _added(metric: Metric) -> Metric:
    return Metric(f"{metric.name} added", metric.key, digits=metric.digits)


def _over_direct(values: Values) -> Values:
    direct = values.get("direct")
    return {
        name: None if number is None or direct is None or name == "direct" else number - direct
        for name, number in values.items()
    }


if __name__ == "__main__":
    main()
