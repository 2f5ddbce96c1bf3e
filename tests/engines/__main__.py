"""Play the scenes in front of real engines: `python -m tests.engines [ENGINE…] [--scene SCENE…]`."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.engine.process import ROOT
from tests.engine.spillway import spillway_server
from tests.engines.programs import ENGINES, place
from tests.engines.scenes import SCENES, Stage

_NAMES = [scene.__name__ for scene in SCENES]


def main() -> int:
    """Exit status: 0 if every scene of every engine that is installed went well, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--scene", action="append", choices=_NAMES, help="only this one; may be given again")
    options = parser.parse_args()
    wanted = options.engines or list(ENGINES)
    if unknown := set(wanted) - set(ENGINES):
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    # An end from outside is an ordinary exit, so that every process is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="spillway-engines-") as folder:
        for engine in wanted:
            if not (ROOT / f".venv-{engine}").exists():
                _say(f"\n{engine} is left out: `make e2e-engines` installs what PyPI has for this machine")
                continue
            found[engine] = play(engine, Path(folder), options.scene or _NAMES)
    _say("\n" + table(found))
    failed = [figure for figures in found.values() for figure in figures.values() if figure == _FAILED]
    return int(bool(failed))


_FAILED = "FAILED"


def play(engine: str, folder: Path, wanted: list[str]) -> dict[str, str]:
    """Play scenes in front of one engine, also after a failure; the figure of each."""
    figures: dict[str, str] = {}
    _say(f"\n{engine}: starting …")
    begun = time.monotonic()
    try:
        with (
            place(engine, folder / engine) as running,
            spillway_server(running.urls, log=folder / f"{engine}.log", **running.settings) as proxy,
        ):
            _say(f"    up after {time.monotonic() - begun:.0f} s")
            stage = Stage(running, proxy, folder)
            for scene in (scene for scene in SCENES if scene.__name__ in wanted):
                begun, logged = time.monotonic(), len(proxy.log)
                try:
                    figures[scene.__name__] = scene(stage)
                    proxy.check(logged)
                except Exception as problem:  # noqa: BLE001 - whatever it is, the other scenes are played
                    figures[scene.__name__] = _FAILED
                    _say(f"    {type(problem).__name__}: {str(problem)[:1500]}\n{proxy.log[logged:][-3000:]}")
                _say(f"    {scene.__name__:<9} {figures[scene.__name__]} ({time.monotonic() - begun:.0f} s)")
    except (RuntimeError, AssertionError) as problem:
        _say(f"    it could not be started, or did not end well: {problem}")
        figures["start"] = _FAILED
    return figures


def table(found: dict[str, dict[str, str]]) -> str:
    """A row for each engine, in Markdown."""
    head = ["engine", *(name for name in [*_NAMES, "start"] if any(name in row for row in found.values()))]
    rows = [[engine, *(figures.get(name, "") for name in head[1:])] for engine, figures in found.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
