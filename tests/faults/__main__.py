"""`python -m tests.faults [--minutes M] [--seed S] [--clients N] [--kinds …]`: chaos; 1 if it found anything."""

import argparse
import asyncio
import sys
from collections import defaultdict
from random import SystemRandom

from tests.faults.backend import FAULTY
from tests.faults.chaos import Chaos


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command line tool


def main() -> int:
    """Run it and print the outcomes by point and fault, and what was found; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTY), default=list(FAULTY))
    options = parser.parse_args()
    say(f"seed {options.seed}: the same mix comes back with --seed {options.seed}")
    chaos = Chaos(60 * options.minutes, options.seed, options.clients, options.kinds, say)
    asyncio.run(chaos.run())
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (point, fault, outcome), number in sorted(chaos.outcomes.items()):
        rows[point, fault].append(f"{outcome} {number}")
    for (point, fault), found in rows.items():
        say(f"{point:24} {fault:28} {', '.join(found)}")
    say("\n".join(["", f"{chaos.outcomes.total()} requests, findings: {len(chaos.findings)}", *chaos.findings]))
    return 1 if chaos.findings else 0


if __name__ == "__main__":
    sys.exit(main())
