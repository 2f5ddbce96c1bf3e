"""Fuzz with `atheris`, which sees which branches an input reaches.

What is found is written to `.fuzz/`, and belongs into `tests/fuzz/corpus/` once it is mended.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(".fuzz")
NAMES = ("events", "chunks", "streams", "calls")
LARGEST = 1024
"""Bytes of an input."""
SLOWEST = 10
"""Seconds after which an input is a hang; the largest one takes 20 milliseconds."""
MOST_MEMORY = 1024
"""MiB."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz all targets for some minutes together, several at a time; how many of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], help="all by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them")
    parser.add_argument("--workers", type=int, default=2, help="targets at a time")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: only the property tests have tried mutations of the corpus", flush=True)
        return 0
    targets = chosen.targets or NAMES
    seconds = max(1, int(60 * chosen.minutes * min(chosen.workers, len(targets)) / len(targets)))
    with ThreadPoolExecutor(chosen.workers) as pool:
        return sum(pool.map(lambda name: fuzzed(name, seconds), targets))


def fuzzed(name: str, seconds: int) -> int:
    """Fuzz one target in a process of its own; 1 if something was found."""
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as grown:
        command = [sys.executable, "-m", "tests.fuzz.atheris_engine", name]
        command += [f"-max_total_time={seconds}", f"-max_len={LARGEST}", f"-timeout={SLOWEST}"]
        command += [f"-rss_limit_mb={MOST_MEMORY}", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1"]
        command += ["-verbosity=0", grown, str(CORPUS / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    print(f"{name}: {tried[1] if tried else 'no'} inputs in {seconds} s", flush=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-1000:], sep="\n", flush=True)
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
