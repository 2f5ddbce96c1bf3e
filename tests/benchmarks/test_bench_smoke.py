"""The benchmark runs end to end, in tiny: what it measures is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import table
from benchmarks.scenarios import Metric, value

ROOT = Path(__file__).parents[2]


def test_a_quick_run_measures_every_target(tmp_path: Path) -> None:
    targets = ("direct", "naive", "spillway", "spillway-sqlite")
    result = tmp_path / "bench.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--json",
        str(result),
        "--targets",
        ",".join(targets),
    ]
    for scenario in ("short", "stream", "turn"):
        command += ["--only", scenario]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert "left out" not in run.stderr
    assert "spillway / naive" in run.stdout
    numbers = json.loads(result.read_text(encoding="utf-8"))["numbers"]
    for name, values in numbers.items():
        assert set(values) == set(targets), name
        assert all(values[target] is not None for target in targets[1:]), name
    assert numbers["short request, CPU us"]["direct"] is None


def test_the_table_shows_ratios_and_aims() -> None:
    rows = [
        (Metric("CPU us", "cpu_us", aim=0.15), {"direct": None, "naive": 1000.0, "spillway": 120.0}),
        (Metric("ms", "p50", digits=2), {"direct": 1.0, "naive": 4.0, "spillway": None}),
    ]
    lines = table(rows, ["direct", "naive", "spillway"]).split("\n")
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[0][-2:] == ["spillway / naive", "aim"]
    assert cells[2] == ["CPU us", "-", "1,000.0", "120.0", "0.12", "<= 0.15"]
    assert cells[3][:5] == ["ms", "1.00", "4.00", "-", "-"]


@pytest.mark.parametrize(("key", "expected"), [("cpu_us", 3.0), ("p50", 51.0), ("p99", 100.0)])
def test_numbers_are_medians_or_pooled_percentiles(key: str, expected: float) -> None:
    rounds = [{"cpu_us": 1.0, "times_ms": range(1, 51)}, {"cpu_us": 5.0, "times_ms": range(51, 101)}]
    assert value(Metric("n", key), rounds) == expected
    assert value(Metric("n", key), []) is None
