"""The figures of each release, kept in `figures.json`, and how today's compare with the last one's.

Machines differ, so a figure is compared in proportion to the bare proxy's of the same run, where that has one.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypedDict

from benchmarks.report import BASES, JUDGED, Values
from benchmarks.scenarios import Metric
from proxy import __version__

FILE = Path(__file__).parent / "figures.json"
WORSE = 1.15
"""Times the last release's from which a figure counts as worse: what two runs on one machine differ by is less."""
Figures: TypeAlias = dict[str, dict[str, float]]
"""Name of a metric to what it was for Spillway, and for the bare proxy where that was measured."""
_BASE = BASES[-1]


class Kept(TypedDict):
    """What is kept of a release."""

    machine: str
    figures: Figures


def figures_of(rows: Sequence[tuple[Metric, Values]]) -> Figures:
    """What is kept of a run."""
    found = {}
    for metric, values in rows:
        numbers = {name: number for name in (JUDGED, _BASE) if (number := values.get(name)) is not None}
        if JUDGED in numbers:
            found[metric.name] = {name: round(number, 3) for name, number in numbers.items()}
    return found


def compared(figures: Figures, kept: Mapping[str, Kept]) -> list[str]:
    """A Markdown table of what both the last release and this run measured; one line where there is nothing to compare."""
    if not kept:
        return ["no figures of a release are kept yet: --keep does that"]
    release = list(kept)[-1]
    before = kept[release]["figures"]
    lines = [f"| times {_BASE}'s, or as it is | {release} | now | now / {release} | |", "|---|--:|--:|--:|---|"]
    for name in figures.keys() & before.keys():
        both = _BASE in figures[name] and _BASE in before[name]
        was, now = (_figure(one[name], in_proportion=both) for one in (before, figures))
        times = now / was if was else (1.0 if not now else float("inf"))
        lines.append(f"| {name} | {was:,.2f} | {now:,.2f} | {times:.2f} | {'WORSE' if times > WORSE else ''} |")
    return [*lines[:2], *sorted(lines[2:])]


def _figure(one: Mapping[str, float], *, in_proportion: bool) -> float:
    base = one.get(_BASE, 0.0) if in_proportion else 0.0
    return one[JUDGED] / base if base else one[JUDGED]


def look(rows: Sequence[tuple[Metric, Values]], *, keep: bool, file: Path = FILE) -> None:
    """Print how a run compares with the last release; `keep`: take its figures in as this release's."""
    kept: dict[str, Kept] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    figures = figures_of(rows)
    print("\n" + "\n".join(compared(figures, kept)))
    if keep:
        earlier = kept.pop(__version__, None)  # the newest stands last
        if earlier is not None:
            figures = {**earlier["figures"], **figures}
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        kept[__version__] = {"machine": machine, "figures": figures}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"kept in {file} as those of {__version__}")
