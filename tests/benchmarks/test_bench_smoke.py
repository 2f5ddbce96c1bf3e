"""The benchmark runs end to end, in tiny: what it measures is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import targets
from benchmarks.process import running
from benchmarks.report import table
from benchmarks.scenarios import Aim, Metric, value

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("names", "scenarios"),
    [
        (("direct", "naive", "bare", "spillway", "spillway-sqlite"), ("short", "stream")),
        (("direct", "spillway"), ("idle", "resumed", "dialects", "first-byte", "turn")),
    ],
)
def test_a_quick_run_measures_every_target(names: tuple[str, ...], scenarios: tuple[str, ...], tmp_path: Path) -> None:
    result = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(result)]
    command += ["--targets", ",".join(names)]
    for scenario in scenarios:
        command += ["--only", scenario]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert "left out" not in run.stdout + run.stderr
    assert ("spillway / bare" in run.stdout) == ("bare" in names)
    found = json.loads(result.read_text(encoding="utf-8"))
    for metric, values in found["numbers"].items():
        assert set(values) == set(names), metric
        assert values["spillway"] is not None, metric
        assert values["direct"] is None or "CPU" not in metric, metric
    for rounds in (found["rounds"][scenario] for scenario in scenarios):
        assert set(rounds) == set(names)
        assert all(one.get("bad", 0) == 0 for results in rounds.values() for one in results)


def test_the_table_shows_ratios_and_aims() -> None:
    cpu = {"direct": None, "naive": 1000.0, "bare": 100.0, "spillway": 120.0}
    rows = [
        (Metric("CPU us", "cpu_us", aim=Aim(1.5, "bare")), cpu),
        (Metric("kB", "kb", aim=Aim(100)), {**cpu, "spillway": 101.0}),
        (Metric("ms", "p50", digits=2), {"direct": 1.0, "naive": 4.0, "spillway": None}),
    ]
    lines = table(rows, ["direct", "naive", "bare", "spillway"]).split("\n")
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[0][-3:] == ["spillway / naive", "spillway / bare", "aim"]
    assert cells[2] == ["CPU us", "-", "1,000.0", "100.0", "120.0", "0.12", "1.20", "<= 1.5 x bare: met"]
    assert cells[3][-1] == "<= 100: missed"
    assert cells[4][:7] == ["ms", "1.00", "4.00", "-", "-", "-", "-"]


def test_an_aim_is_not_judged_without_what_it_is_a_multiple_of() -> None:
    row = (Metric("CPU us", "cpu_us", aim=Aim(1.5, "bare")), {"nginx": 1.0, "spillway": 120.0})
    assert "<= 1.5 x bare |" in table([row], ["nginx", "spillway"])
    assert "bare" not in table([row], ["nginx"])


def test_litellm_is_left_out_with_a_reason_until_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "LITELLM", tmp_path)
    assert "make bench" in targets.missing("litellm")
    (tmp_path / ".ready").touch()
    assert targets.missing("litellm") == ""


def test_a_foreign_program_is_not_told_the_users_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    command = [sys.executable, "-c", "import os, signal; print('told', *os.environ, flush=True); signal.pause()"]
    with running(command, tmp_path / "log", {"LITELLM_LOG": "ERROR"}, foreign=True) as process:
        told = process.wait_for("told").split()
    assert "LITELLM_LOG" in told
    assert "OPENAI_API_KEY" not in told


@pytest.mark.parametrize(("key", "expected"), [("cpu_us", 3.0), ("p50", 51.0), ("p99", 100.0)])
def test_numbers_are_medians_or_pooled_percentiles(key: str, expected: float) -> None:
    rounds = [{"cpu_us": 1.0, "times_ms": range(1, 51)}, {"cpu_us": 5.0, "times_ms": range(51, 101)}]
    assert value(Metric("n", key), rounds) == expected
    assert value(Metric("n", key), []) is None
