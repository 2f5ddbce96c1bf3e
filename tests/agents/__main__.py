"""Have agents work through a task that is five windows long: `python -m tests.agents [PROGRAM…]`."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.agents.model import DONE, HARBOUR, WORDS, Counter, prefix_kept, shortened
from tests.agents.programs import AFTERWARDS, ALLOWED, GUIDE, GUIDES, MODEL, PROGRAMS
from tests.fakes import FakeModel, LlamaCppFake
from tests.proxying import Proxy, running_proxy

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
    """One program's task; whether it went well, and what was said at the beginning is known after the program's own compaction."""
    model = Counter(options.steps)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix=f"spillway-{name}-") as folder,
        LlamaCppFake([FakeModel(MODEL, window=options.window)], brain=model.brain) as fake,
        running_proxy(fake, grace=2.0) as proxy,
    ):
        (Path(folder) / "home").mkdir()
        (Path(folder) / "work").mkdir()
        for guide in GUIDES:
            (Path(folder) / "work" / guide).write_text(GUIDE)
        ran = _launch(name, PROGRAMS[name], Path(folder), proxy)
        chats, forgotten = fake.chats(), model.forgotten
        later = [_launch(name, arguments, Path(folder), proxy) for arguments in AFTERWARDS.get(name, ())]
        status = sum(each.returncode for each in (ran, *later))
        faults = (status, fake.overflows, len(fake.invalid_histories), model.own_compactions - bool(later), forgotten)
        short, kept = shortened(chats), f"{prefix_kept(chats):.0%}"
        well = not any(faults) and model.calls == options.steps and DONE in ran.stdout and short >= SHORTENED
        well &= all(fact in each.stdout for each in later[-1:] for fact in (HARBOUR, WORDS))
        seconds = round(time.monotonic() - begun)
        _say(ROW.format(name, model.calls, status, seconds, model.tokens, *faults[1:], short, kept, "" if well else "FAILED"))
        if options.show or not well:
            _say("\n".join(f"{each.stdout[-3000:]}\n{each.stderr[-3000:]}" for each in (ran, *later)))
            _say("\n".join(fake.invalid_histories[:3]))
        return well


def _launch(name: str, arguments: Sequence[str], folder: Path, proxy: Proxy) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "proxy", "launch", name, "--model", MODEL, "--", *arguments],
        cwd=folder / "work",
        env={
            "PATH": f"{BIN}{os.pathsep}{os.defpath}", "HOME": str(folder / "home"), "PYTHONPATH": str(ROOT),
            "SPILLWAY_PORT": proxy.url.rpartition(":")[2], **ALLOWED,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )  # fmt: skip


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
