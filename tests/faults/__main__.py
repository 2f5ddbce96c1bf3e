"""`python -m tests.faults [--minutes M] [--seed S] [--clients N] [--kinds …]`: chaos; 1 if it found anything."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from random import SystemRandom

from tests.faults.backend import FAULTY
from tests.faults.chaos import Chaos, Tally


def main() -> int:
    """Run it and print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTY), default=list(FAULTY))
    options = parser.parse_args()
    print(f"seed {options.seed}: the same mix comes back with --seed {options.seed}", flush=True)  # noqa: T201 - a command line tool

    async def run() -> Tally:
        return await Chaos(
            seconds=60 * options.minutes,
            seed=options.seed,
            clients=options.clients,
            kinds=options.kinds,
            say=lambda line: print(line, flush=True),  # noqa: T201 - as above
        ).run()

    tally = asyncio.run(run())
    print(table(tally))  # noqa: T201 - as above
    return 1 if tally.findings else 0


def table(tally: Tally) -> str:
    """The outcomes by point and fault, and what was found."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (point, fault, outcome), number in sorted(tally.outcomes.items()):
        rows[point, fault].append(f"{outcome} {number}")
    lines = [f"{point:24} {fault:28} {', '.join(told)}" for (point, fault), told in rows.items()]
    return "\n".join([*lines, "", f"{tally.requests} requests, findings: {len(tally.findings)}", *tally.findings])


if __name__ == "__main__":
    sys.exit(main())
