"""The benchmark runs end to end, in tiny: what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


NAMES = ("direct", "bare", "spillway")
SCENARIOS = ("short", "stream", "resumed", "turn")


@pytest.mark.heavy
def test_a_quick_run_measures_every_target(tmp_path: Path) -> None:
    result = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(result)]
    command += ["--targets", ",".join(NAMES)]
    for scenario in SCENARIOS:
        command += ["--only", scenario]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert "left out" not in run.stdout + run.stderr
    assert "spillway / bare" in run.stdout
    found = json.loads(result.read_text(encoding="utf-8"))
    for metric, values in found["numbers"].items():
        assert set(values) == set(NAMES), metric
        assert values["spillway"] is not None, metric
        assert values["direct"] is None or "CPU" not in metric, metric
    for rounds in (found["rounds"][scenario] for scenario in SCENARIOS):
        assert set(rounds) == set(NAMES)
        assert all(one.get("bad", 0) == 0 for results in rounds.values() for one in results)
