"""The last lines of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.skips import left_out

ROOT = Path(__file__).parent.parent


def test_nothing_left_out_is_not_worth_a_line() -> None:
    assert left_out({}) == []


def test_what_is_missing_comes_with_one_command() -> None:
    reasons = {
        "redis-server is not installed": 40,
        "openssl is not installed: no certificate to test TLS with": 2,
        "this kind has one choice": 2,
    }
    assert left_out(reasons) == [
        "44 tests were skipped:",
        "  2 because openssl is not installed: no certificate to test TLS with",
        "  40 because redis-server is not installed",
        "  2 because this kind has one choice",
        "To run them too: apt-get install -y redis-server openssl",
    ]


def test_what_no_package_brings_comes_without_a_command() -> None:
    assert left_out({"this kind has one choice": 2})[-1] == "  2 because this kind has one choice"


def test_a_run_without_redis_says_so_at_its_end() -> None:
    """Also where several workers share it."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-k", "dropped_connection", "tests/store/test_redis.py"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  1 because redis-server is not installed" in done.stdout.split("\n")
    assert "To run them too: apt-get install -y redis-server" in done.stdout.split("\n")
