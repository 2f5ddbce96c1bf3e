"""The figures that are kept of each release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import FILE, Figures, Kept, compared, look
from benchmarks.scenarios import Metric
from proxy import __version__

SHORT, MEMORY = Metric("short", "s"), Metric("memory", "m")


def cell(lines: list[str], name: str, column: int) -> str:
    (line,) = [line for line in lines if line.startswith(f"| {name} |")]
    return line.split("|")[column].strip()


def test_what_became_worse_than_in_the_last_release_is_marked() -> None:
    was: Figures = {"a": {"spillway": 200.0}, "b": {"spillway": 10.0}, "gone": {"spillway": 1.0}}
    older: Figures = {"a": {"spillway": 1.0}}
    kept: dict[str, Kept] = {
        "0.1": {"machine": "x", "figures": older},
        "0.2": {"machine": "x", "figures": was},
    }
    lines = compared({"a": {"spillway": 260.0}, "b": {"spillway": 10.5}}, kept)
    assert (cell(lines, "a", 2), cell(lines, "a", 4), cell(lines, "a", 5)) == ("200.00", "1.30", "WORSE")
    assert cell(lines, "b", 5) == ""
    assert not any("gone" in line for line in lines)


def test_a_slower_machine_is_no_regression() -> None:
    was: Figures = {"a": {"spillway": 200.0, "bare": 100.0}}
    kept: dict[str, Kept] = {"0.2": {"machine": "x", "figures": was}}
    slower = compared({"a": {"spillway": 400.0, "bare": 200.0}}, kept)
    assert (cell(slower, "a", 3), cell(slower, "a", 5)) == ("2.00", "")
    worse = compared({"a": {"spillway": 300.0, "bare": 100.0}}, kept)
    assert cell(worse, "a", 5) == "WORSE"


def test_a_release_keeps_its_figures_and_looking_changes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    look([(SHORT, {"spillway": 5.0, "bare": 2.0, "nginx": 1.0})], keep=True, file=file)
    look([(MEMORY, {"spillway": 80.0, "bare": None})], keep=True, file=file)
    kept = file.read_text(encoding="utf-8")
    assert json.loads(kept)[__version__]["figures"] == {
        "short": {"spillway": 5.0, "bare": 2.0},
        "memory": {"spillway": 80.0},
    }
    look([(MEMORY, {"spillway": 99.0})], keep=False, file=file)
    assert file.read_text(encoding="utf-8") == kept
    assert "WORSE" in capsys.readouterr().out


def test_figures_of_a_release_are_kept() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8"))
