"""Run what users run in front of Spillway, each part within its minutes: `python -m tests.e2e [PART…]`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKE = ("make", "--no-print-directory", "--silent")
COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
"""One count of a program's last line, in pytest's words."""
KILL_SECONDS = 30.0
"""Time from SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Part:
    """One program that plays scenes, and the commands that install what it needs."""

    name: str
    unit: str
    command: Sequence[str]
    installs: Sequence[Sequence[str]] = ()
    minutes: float = 10


PARTS = (
    Part(
        "npm",
        "tests",
        (sys.executable, "-m", "pytest", "-q", "-n", "2", *map(str, ROOT.glob("tests/e2e/test_*_npm*.py"))),
        minutes=5,
    ),
    Part(
        "agents",
        "programs",
        (sys.executable, "-m", "tests.agents", "--steps", "60"),
        [(*MAKE, "tests/agents/node_modules/.ready")],
    ),
    Part(
        "openwebui",
        "scenes",
        (sys.executable, "-m", "tests.openwebui"),
        [(sys.executable, "-m", "tests.openwebui", "--check"), (*MAKE, ".venv-openwebui/.ready")],
        minutes=15,
    ),
)


@dataclass(slots=True)
class Result:
    """Counts of one part, and its line for the end of the run."""

    part: Part
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    note: str = ""

    @property
    def line(self) -> str:
        """Counts and seconds, as in "openwebui: 13 scenes, 13 passed, 412 s"."""
        shown = [f"{self.counts.total()} {self.part.unit}"]
        shown += [
            f"{n} {word}" for word in ("passed", "failed", "skipped") if (n := self.counts[word]) or word == "passed"
        ]
        return f"{self.part.name}: {', '.join(shown)}, {self.seconds:.0f} s{self.note and f' ({self.note})'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if nothing failed, 1 if something did."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; default: all")
    wanted = parser.parse_args(arguments).parts or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    ci = os.environ.get("CI") == "true"  # noqa: TID251 - of the tests, not of the proxy
    return report([play(part, ci=ci) for part in PARTS if part.name in wanted])


def report(results: Sequence[Result]) -> int:
    """Print a line for each part and the sum of all, and give the exit status."""
    for result in results:
        sys.stdout.write(f"{result.line}\n")
    total = sum((result.counts for result in results), Counter[str]())
    sys.stdout.write(f"{total['passed']} passed, {total['failed']} failed\n")
    return int(total["failed"] > 0)


def play(part: Part, *, ci: bool) -> Result:
    """Install what a part needs, run it, and count; what was left out is a failure in CI."""
    result, began = Result(part), time.monotonic()
    deadline = began + 60 * part.minutes
    for command in part.installs:
        if run(command, deadline)[0] != 0:
            result.note = f"{' '.join(command[-2:])} failed, so it could not be run"
            result.counts["skipped"] = 1
            break
    else:
        status, last = run(part.command, deadline)
        for number, word in COUNT.findall(last):
            result.counts["failed" if word == "error" else word] += int(number)
        if status != 0 or not result.counts.total():
            result.counts["failed"] = result.counts["failed"] or 1
            result.note = f"ended with {status}"
    result.seconds = time.monotonic() - began
    if time.monotonic() > deadline:
        result.note = f"stopped after {part.minutes:g} minutes"
    if ci:
        result.counts["failed"] += result.counts.pop("skipped", 0)
    return result


def run(command: Sequence[str], deadline: float) -> tuple[int, str]:
    """Run a command, show its output, end it and all that it started at the deadline; give its status and last line."""
    last = ""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        left = max(0.0, deadline - time.monotonic())
        timers = [
            threading.Timer(left + later, _signal, (process.pid, number))
            for later, number in ((0.0, signal.SIGTERM), (KILL_SECONDS, signal.SIGKILL))
        ]
        for timer in timers:
            timer.start()
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
        process.wait()
        for timer in timers:
            timer.cancel()
    return process.returncode, last


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
