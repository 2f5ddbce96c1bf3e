"""Have agents work through a task that is five windows long: `python -m tests.agents [PROGRAM…]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.agents.model import DONE, Counter, prefix_kept, shortened
from tests.agents.programs import ALLOWED, GUIDE, GUIDES, MODEL, PROGRAMS
from tests.fakes import FakeModel, LlamaCppFake
from tests.proxying import running_proxy

ROOT = Path(__file__).parents[2]
BIN = Path(__file__).parent / "node_modules/.bin"
MINUTES = 5
SHORTENED = 3
"""Times that a prompt must have been shortened at least, for the task to be worth anything."""
ROW = "{:10} {:>5} {:>6} {:>7} {:>9} {:>8} {:>9} {:>7} {:>9} {:>9} {:>7}  {}"


def main() -> int:
    """Exit status: 0 if every program did its task without a fault, 1 if not, 2 if one is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.agents", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--steps", type=int, default=120, help="tool calls of the task")
    parser.add_argument("--window", type=int, default=16384, help="the model's real window, in tokens")
    parser.add_argument("--show", action="store_true", help="show what each program said")
    options = parser.parse_args()
    wanted = options.programs or list(PROGRAMS)
    if unknown := set(wanted) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if missing := [name for name in wanted if not (BIN / name).exists()]:
        _say(f"Not installed: {', '.join(missing)}. `make e2e-agents` does that.")
        return 2
    heads = ("program", "steps", "exit", "seconds", "tokens", "overflow", "invalid", "own", "forgotten")
    _say(ROW.format(*heads, "shortened", "prefix", ""))
    results = [_play(name, options) for name in wanted]
    _say(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return int(not all(results))


def _play(name: str, options: argparse.Namespace) -> bool:
    """One program's task; whether it went well."""
    model = Counter(options.steps)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix=f"spillway-{name}-") as folder,
        LlamaCppFake([FakeModel(MODEL, window=options.window)], brain=model.brain) as fake,
        running_proxy(fake, grace=2.0) as proxy,
    ):
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        for guide in GUIDES:
            (work / guide).write_text(GUIDE)
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "proxy", "launch", name, "--model", MODEL, "--", *PROGRAMS[name]],
            cwd=work,
            env={
                "PATH": f"{BIN}{os.pathsep}{os.defpath}",
                "HOME": str(home),
                "PYTHONPATH": str(ROOT),
                "SPILLWAY_PORT": proxy.url.rpartition(":")[2],
                **ALLOWED,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
            check=False,
        )
        invalid = len(fake.invalid_histories)
        faults = (ran.returncode, fake.overflows, invalid, model.own_compactions, model.forgotten)
        short, kept = shortened(fake.chats()), f"{prefix_kept(fake.chats()):.0%}"
        well = not any(faults) and model.calls == options.steps and DONE in ran.stdout and short >= SHORTENED
        status, *counts = faults
        seconds = round(time.monotonic() - begun)
        _say(
            ROW.format(name, model.calls, status, seconds, model.tokens, *counts, short, kept, "" if well else "FAILED")
        )
        if options.show or not well:
            _say(f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}\n" + "\n".join(fake.invalid_histories[:3]))
        return well


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
